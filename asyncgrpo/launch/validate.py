"""The command `validate`.

    recipe --> errors | "no errors", what keeps it from starting on this machine, derived values

It starts no process of a run.
"""

import sys
from pathlib import Path

from asyncgrpo.config import load_recipe
from asyncgrpo.launch.checks import this_machine
from asyncgrpo.launch.prepare import prepare
from asyncgrpo.launch.view.derived import derived_text


def validate(recipe: Path, overrides: list[str], *, no_checkpoints: bool = False) -> None:
    """Print the derived values of a sound recipe. Raises ConfigError with all that is wrong."""
    loaded = load_recipe(recipe, overrides, no_checkpoints=no_checkpoints)
    prepared = prepare(loaded, starts=False)
    print(f"{recipe}: no errors\n")
    for problem in this_machine.problems(prepared.config, launch_server=prepared.launches_servers):
        print(f"would not start here: {problem}", file=sys.stderr)
    print(derived_text(prepared.derivation))
