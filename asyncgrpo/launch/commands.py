"""The commands `train`, `serve` and `resume`; the command line only reads their arguments.

recipe --prepare--> Prepared --dry run--> printed
                        └--run directory, lock--> Attempt --> the run's account
"""

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import yaml
from rich.console import Console

from asyncgrpo.config import Config, known, load_recipe, reload
from asyncgrpo.launch.account import account, program
from asyncgrpo.launch.attempt import Attempt, Ending, serving_directory
from asyncgrpo.launch.checks import this_machine
from asyncgrpo.launch.plan import plan_servers, plan_training
from asyncgrpo.launch.prepare import Prepared, prepare
from asyncgrpo.launch.processes import guard
from asyncgrpo.launch.processes.spec import describe, masked
from asyncgrpo.launch.run_dir import RunDirectory, create, locked, reopen
from asyncgrpo.launch.view.derived import derived_text
from asyncgrpo.launch.view.panel import PanelView
from asyncgrpo.launch.view.view import LineView, View
from asyncgrpo.ledger.checkpoint_layout import choose_checkpoint
from asyncgrpo.ledger.run_end import longer, reached_end

T = TypeVar("T")


def train(
    recipe: Path, overrides: list[str], *, dry_run: bool = False, no_checkpoints: bool = False
) -> bool:
    """Start a run and wait for its end; False if cut short. Raises UserError."""
    loaded = load_recipe(recipe, overrides, no_checkpoints=no_checkpoints)
    prepared = prepare(loaded, starts=not dry_run)
    if dry_run:
        _print_dry_run(prepared, dry_run_text(prepared))
        return True
    run = create(Path(known(prepared.config.run.dir)))
    run.recipe.write_text(loaded.text, encoding="utf-8")
    return _train_to_the_end(prepared, run, None)


def resume(
    run_dir: Path,
    overrides: list[str],
    *,
    checkpoint: int | None = None,
    no_checkpoints: bool = False,
) -> bool:
    """Continue a run from its directory alone. Raises UserError."""
    run = reopen(run_dir)
    where = f"run.dir={json.dumps(str(run.path))}"  # it may have been moved
    loaded = reload(run.path, [where, *overrides], no_checkpoints=no_checkpoints)
    found = choose_checkpoint(run.checkpoints, checkpoint, _warn)
    if found is not None and (reached := reached_end(loaded.config, found.state)):
        print(f"{run_dir} has reached its end, {reached}: nothing to train")
        print(f"next     {program()} resume {run_dir} {longer(loaded.config)}")
        return True
    prepared = prepare(loaded)
    print(
        f"going on from step {found.state.step}" if found else "no checkpoint yet: from the start"
    )
    return _train_to_the_end(prepared, run, checkpoint)


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def serve(recipe: Path, overrides: list[str], *, dry_run: bool = False) -> None:
    """Run the servers alone until the user stops them. Raises UserError."""
    prepared = prepare(load_recipe(recipe, [*overrides, "server.urls=null"]), starts=not dry_run)
    if dry_run:
        servers = plan_servers(prepared.config, prepared.machine)
        _print_dry_run(prepared, "\n\n".join(describe(spec) for spec in servers))
        return
    view = _view(prepared.config)
    run = RunDirectory(serving_directory(prepared.config))
    _run_and_end_leftovers(Attempt(prepared, run, view).serve())


def _train_to_the_end(prepared: Prepared, run: RunDirectory, checkpoint: int | None) -> bool:
    view = _view(prepared.config)
    view.say(derived_text(prepared.derivation))
    view.say(f"run directory {run.path}")
    with locked(run) as lock:
        attempt = Attempt(prepared, run, view, lock=lock, checkpoint=checkpoint)
        ending = _run_and_end_leftovers(attempt.train())
    print(account(run, ending))
    return ending is not Ending.CUT_SHORT


def _run_and_end_leftovers(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, then end every process that its processes have left behind."""
    guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
    try:
        return asyncio.run(work)
    finally:
        guard.end_leftovers()


def _view(config: Config) -> View:
    console = Console()
    if console.is_terminal and not os.environ.get("CI"):
        return PanelView(known(config.run.name), console)
    return LineView(sys.stdout)


def dry_run_text(prepared: Prepared) -> str:
    """Every process with its environment, then the configuration; secrets masked."""
    config, at = prepared.config, prepared.machine
    run_dir = Path(known(config.run.dir))
    specs = (*plan_servers(config, at), *plan_training(config, at, run_dir))
    return "\n\n".join([*(describe(spec) for spec in specs), config_text(config)])


def _print_dry_run(prepared: Prepared, text: str) -> None:
    """Print what would be started, and on stderr why it would not start here."""
    print(text)
    for problem in this_machine.problems(prepared.config, launch_server=prepared.launches_servers):
        print(f"would not start here: {problem}", file=sys.stderr)


def config_text(config: Config) -> str:
    """The resolved configuration as YAML, the values of secret variables masked."""
    tree = config.model_dump(mode="json")
    tree["server"]["env"] = {k: masked(k, v) for k, v in tree["server"]["env"].items()}
    return "# configuration\n" + yaml.safe_dump(tree, sort_keys=False)
