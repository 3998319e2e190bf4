"""The account of a run that ended: its rewards, its results, the next command."""

import shutil
import sys
from pathlib import Path

from asyncgrpo.launch.attempt import Ending
from asyncgrpo.launch.run_dir import RunDirectory
from asyncgrpo.launch.view.progress import Tail, reward_way
from asyncgrpo.ledger.checkpoint_layout import list_checkpoints

ENDED = {
    Ending.FINISHED: "finished",
    Ending.STOPPED: "stopped as asked; nothing is lost",
    Ending.CUT_SHORT: "cut short: steps since the last checkpoint are lost",
}


def account(run: RunDirectory, ending: Ending) -> str:
    """A few lines for the person who started the run."""
    records = Tail(run.metrics).read()
    by_step = {record.get("step"): record for record in records}  # a resume repeats steps
    rewards = [float(r["reward"]) for r in by_step.values() if r.get("reward") is not None]
    last = records[-1].get("step") if records else 0
    checkpoints = list_checkpoints(run.checkpoints)
    where = _shown(run.path)
    lines = [f"{ENDED[ending]}, at step {last}", reward_way(rewards), f"results  {where}"]
    if checkpoints:
        lines.append(f"weights  {_shown(checkpoints[max(checkpoints)])}")
    if not run.config.is_file():  # stopped before its servers were up: nothing to resume
        next_command = f"rm -r {where}, then the same command again"
    elif ending is Ending.FINISHED:
        next_command = f"{program()} diagnose {where}"
    else:
        next_command = f"{program()} resume {where}"
    return "\n".join([*lines, f"next     {next_command}"])


def program() -> str:
    """The command as the user can type it.

    Its path, where its environment is not active.
    """
    installed = Path(sys.executable).with_name("asyncgrpo")
    by_path = shutil.which("asyncgrpo") is None and installed.is_file()
    return _shown(installed) if by_path else "asyncgrpo"


def _shown(path: Path) -> str:
    """A path the way the user would write it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
