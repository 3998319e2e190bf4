"""Where a run goes on: which checkpoint, and whether there is anything left to train.

    checkpoints/step-000050/{complete.json, rollout_state.json}  -->  Position | the start

The trainer checks what is in the files; here, before anything starts, that they are all there.
"""

import json
import re
from pathlib import Path

from asyncgrpo.config import Config
from asyncgrpo.errors import CheckpointError
from asyncgrpo.launch.run_dir import RunDirectory
from asyncgrpo.ledger.state_file import RolloutState, read_state

STEP_FOLDER = re.compile(r"step-(\d+)")
COMPLETE = "complete.json"


def position(run: RunDirectory, step: int | None) -> RolloutState | None:
    """The state of the checkpoint to go on from; None = no checkpoint yet: from the start.

    Raises CheckpointError where `step` has no checkpoint, or it is not whole any more.
    """
    found = complete_checkpoints(run.checkpoints)
    if step is None:
        return _state(found[max(found)]) if found else None
    if step not in found:
        have = ", ".join(str(each) for each in found) or "none"
        raise CheckpointError(
            f"--checkpoint: {run.path} has no checkpoint of step {step}; it has: {have}"
        )
    return _state(found[step])


def _state(checkpoint: Path) -> RolloutState:
    """The checkpoint's state, once every file has the size that it was written with."""
    try:
        sizes: dict[str, int] = json.loads((checkpoint / COMPLETE).read_text()).get("files", {})
        wrong = [name for name, size in sizes.items() if _size(checkpoint / name) != size]
    except (OSError, ValueError, AttributeError):
        wrong = [COMPLETE]
    if wrong:
        raise CheckpointError(
            f"{checkpoint} is damaged: {', '.join(wrong)} missing or of another size than written; "
            f"resume from another one with --checkpoint STEP"
        )
    return read_state(checkpoint)


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def complete_checkpoints(directory: Path) -> dict[int, Path]:
    """Checkpoints by step, oldest first; unfinished ones do not count."""
    folders = [(STEP_FOLDER.fullmatch(path.name), path) for path in directory.glob("step-*")]
    return dict(sorted((int(m[1]), p) for m, p in folders if m and (p / COMPLETE).is_file()))


def end_reached(config: Config, state: RolloutState) -> str | None:
    """What ended the run, if it has reached its end."""
    trainer = config.trainer
    if trainer.max_steps > 0:
        if state.step < trainer.max_steps:
            return None
        return f"step {state.step} of trainer.max_steps {trainer.max_steps}"
    resolved = state.epoch * state.num_prompts + state.prompt_index
    if resolved < max(round(trainer.num_train_epochs * state.num_prompts), 1):
        return None
    return f"the end of epoch {trainer.num_train_epochs:g} (trainer.num_train_epochs)"


def longer(config: Config) -> str:
    """An override that lets a run that has reached its end go on as long again."""
    if config.trainer.max_steps > 0:
        return f"trainer.max_steps={2 * config.trainer.max_steps}"
    return f"trainer.num_train_epochs={2 * config.trainer.num_train_epochs:g}"
