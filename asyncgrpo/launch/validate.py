"""The command `validate`.

    recipe --> errors | "no errors", what keeps it from starting on this machine, derived values
    --try  --> the user's code on a few rows: prompts, rewards, what is odd

It starts no process of a run.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.config import Config, load_recipe
from asyncgrpo.errors import ConfigError
from asyncgrpo.launch.checks import this_machine
from asyncgrpo.launch.prepare import prepare
from asyncgrpo.launch.view.derived import derived_text


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """The options of `--try`."""

    num_rows: int
    completions: Sequence[str] = ()


def validate(
    recipe: Path,
    overrides: list[str],
    *,
    no_checkpoints: bool = False,
    trial: TrialOrder | None = None,
) -> None:
    """Print the derived values of a sound recipe, or with `trial` what its code does.

    Raises:
        UserError: all that is wrong with the recipe, or with the user's code.
    """
    loaded = load_recipe(recipe, overrides, no_checkpoints=no_checkpoints)
    prepared = prepare(loaded, starts=False)
    print(f"{recipe}: no errors\n")
    for problem in this_machine.problems(prepared.config, launch_server=prepared.launches_servers):
        print(f"would not start here: {problem}", file=sys.stderr)
    if trial is None:
        print(derived_text(prepared.derivation))
    else:
        _try(prepared.config, trial)


def _try(config: Config, order: TrialOrder) -> None:
    """Print what the user's code does. Raises UserError where it fails."""
    # Imported here, since they are slow.
    from asyncgrpo.launch.trial.rows import try_rows
    from asyncgrpo.launch.trial.text import tried_text

    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as in the worker, which has no GPU

    rows = asyncio.run(try_rows(config, order.num_rows, order.completions))
    print(tried_text(rows))
    if errors := [error for row in rows for error in row.errors]:
        raise ConfigError("\n".join(" ".join(error.splitlines()) for error in errors))
