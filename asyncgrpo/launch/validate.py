"""The command `validate`.

It starts nothing, so it imports nothing that starts processes: it must be fast.
"""

from pathlib import Path

from asyncgrpo.config import load_recipe, local_facts, resolve
from asyncgrpo.launch import machine
from asyncgrpo.launch.checks import preflight
from asyncgrpo.launch.view.derived import derived_text


def validate(recipe: Path, overrides: list[str], *, no_checkpoints: bool = False) -> None:
    """Print the derived values of a sound recipe. Raises ConfigError with all that is wrong."""
    loaded = load_recipe(recipe, overrides, no_checkpoints=no_checkpoints)
    facts = local_facts(
        loaded.config, cuda_count=machine.cuda_count(), recipe_name=loaded.path.stem
    )
    derivation = resolve(loaded, facts)
    preflight.check_inputs(derivation.config)
    print(f"{recipe}: no errors\n")
    print(derived_text(derivation))
