"""The import paths of a recipe: is there such a module, found without running any.

    rollout.rewards, tools, environments, loop, advantage
    loss.correction                                   -->  a line for each that leads nowhere

`./file.py:name` was checked when the recipe was read.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from asyncgrpo import rewards
from asyncgrpo.config import Config
from asyncgrpo.config.sections.environments import sources_by_key
from asyncgrpo.launch.checks import own_functions
from asyncgrpo.launch.checks.source_files import not_in_module


def problems(config: Config) -> Iterator[str]:
    """A line for each import path that leads nowhere."""
    named = {f"rollout.rewards[{i}]": r.path for i, r in enumerate(config.rollout.rewards)}
    named |= {f"rollout.tools[{i}]": path for i, path in enumerate(config.rollout.tools)}
    environments = sources_by_key(config.rollout.environments)
    named |= {key: source.path for key, source in environments.items()}
    if config.rollout.loop is not None:
        named["rollout.loop"] = config.rollout.loop
    named |= own_functions.own_paths(config)
    for key, path in named.items():
        module, _, name = path.rpartition(":")
        if module == rewards.__name__:
            if name not in rewards.__all__:
                known_names = ", ".join(rewards.__all__)
                yield f"{key}: no reward `{name}` in {module}; expected {known_names}"
        elif module.endswith(".py"):
            continue
        elif problem := not_in_module(module, name):
            yield f"{key}: {problem}"
        elif not module_exists(module):
            yield (
                f"{key}: no module `{module}` (for `{path}`); start from the folder that holds it, "
                f"install it, or name a file: `./file.py:name`"
            )


def module_exists(name: str) -> bool:
    """True if `import name` would find a file; no module is run.

    The worker looks in the working directory too, which is not on this process's path.
    """
    return _exists_below([Path()], name.split(".")) or _exists_on_path(name)


def _exists_on_path(name: str) -> bool:
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None:
        return False
    return _exists_below([Path(folder) for folder in spec.submodule_search_locations or ()], rest)


def _exists_below(folders: list[Path], parts: list[str]) -> bool:
    for part in parts:
        here = [folder / part for folder in folders]
        if any(path.with_suffix(".py").is_file() for path in here):
            folders = []
        elif packages := [path for path in here if path.is_dir()]:
            folders = packages
        elif any(list(folder.glob(f"{part}.*.so")) for folder in folders):
            folders = []
        else:
            return False
    return True
