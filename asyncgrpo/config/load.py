"""From a recipe to a checked configuration; every problem is reported at once.

recipe.yaml --layers--> merge, overrides, ${...} --> paths --> fields --> rules --> LoadedRecipe
LoadedRecipe, Facts --resolve--> Config with derived values, checked again
run directory, overrides --reload--> LoadedRecipe
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgrpo.config.derive import Derivation, Facts, derive, keys_derived, undo
from asyncgrpo.config.problems import Key, Origin, Problem, config_error, dotted
from asyncgrpo.config.reading.check import check_fields
from asyncgrpo.config.reading.merge import EXTENDS, Layer, keys_of, merge, origin_of, read_layers
from asyncgrpo.config.reading.paths import Resolver
from asyncgrpo.config.reading.yaml_text import parse_mapping
from asyncgrpo.config.resolved import CONFIG_FILE, load_resolved, read_document
from asyncgrpo.config.rules import not_yet, rules
from asyncgrpo.config.rules.rule import Flags
from asyncgrpo.config.sections.tree import Config


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check that needs no fact about the machine."""

    config: Config
    path: Path
    sources: Mapping[Key, Origin]  # where each key was set
    text: str  # as written
    flags: Flags

    def source(self, key: Key) -> Origin:
        """The place where a key was set; the recipe for a default."""
        return origin_of(key, self.sources, Origin(str(self.path)))


def load_recipe(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    no_checkpoints: bool = False,
    paths_must_exist: bool = True,
) -> LoadedRecipe:
    """Read, merge and check a recipe.

    Args:
        path: the YAML file; messages show it as given.
        overrides: `key=value`, with YAML values.
        no_checkpoints: accept `checkpoint.save_steps: null`.
        paths_must_exist: refuse paths of models, data and functions that are not there.

    Raises:
        ConfigError: one line per problem.
    """
    recipe = str(path)
    problems: list[Problem] = []
    layers = read_layers(recipe, problems)
    return _finish(
        layers,
        recipe,
        overrides,
        problems,
        Flags(no_checkpoints),
        paths_must_exist=paths_must_exist,
    )


def reload(
    run_dir: Path, overrides: Sequence[str] = (), *, no_checkpoints: bool = False
) -> LoadedRecipe:
    """A run's configuration with overrides on top; derived values are open again.

    The run's name and directory stay what they were.

    Raises:
        ConfigError: an override is wrong, or does not go with the rest.
        CheckpointError: the run directory has no config.json of this version.
    """
    file = run_dir / CONFIG_FILE
    document = read_document(file)
    tree = load_resolved(file).model_dump(mode="json")
    opened = {*keys_derived()} - {"run.name", "run.dir"}
    undo(tree, tuple(key for key in document["derived"] if key in opened))
    lines = parse_mapping(file.read_text(encoding="utf-8"), str(file)).lines
    origins = {
        key: Origin(str(file), lines["config", *key])
        for key in keys_of(tree)
        if ("config", *key) in lines
    }
    flags = Flags(no_checkpoints=no_checkpoints or tree["checkpoint"]["save_steps"] is None)
    return _finish([Layer(tree, origins)], str(file), overrides, [], flags, paths_must_exist=True)


def resolve(recipe: LoadedRecipe, facts: Facts) -> Derivation:
    """Derive the open values and check the rules again. Raises ConfigError."""
    derivation = derive(recipe.config, facts)
    problems = _rule_problems(
        derivation.config, recipe.flags, set(), recipe.sources, str(recipe.path)
    )
    problems += _context_problems(recipe, derivation.config, facts)
    if problems:
        raise config_error(problems)
    return derivation


def _context_problems(recipe: LoadedRecipe, config: Config, facts: Facts) -> list[Problem]:
    """The problem with the context: not known before a launch, or longer than served."""
    wanted, served = config.server.max_model_len, facts.served_max_model_len
    if wanted is None and facts.server_urls is not None:
        message = (
            f"cannot be derived: the context of {config.model.name_or_path} is not known here; "
            "set it, or fetch the model's config.json into the hub's cache first"
        )
    elif wanted is not None and served is not None and wanted > served:
        message = (
            f"got {wanted}, but the server serves {served}: restart it with "
            f"--max-model-len {wanted}, or lower the key"
        )
    else:
        return []
    key = ("server", "max_model_len")
    return [Problem(recipe.source(key), dotted(key), message)]


def _finish(
    layers: list[Layer],
    recipe: str,
    overrides: Sequence[str],
    problems: list[Problem],
    flags: Flags,
    *,
    paths_must_exist: bool,
) -> LoadedRecipe:
    if any(problem.key in {"", EXTENDS} for problem in problems):
        raise config_error(problems)  # a file is missing: what it would set is not known
    merged = merge(layers, overrides, _defaults())
    Resolver(merged, recipe, must_exist=paths_must_exist).run()
    checked = check_fields(merged, recipe)
    problems += merged.problems + checked.problems
    problems += _rule_problems(checked.config, flags, checked.bad, merged.origins, recipe)
    if problems:
        raise config_error(problems)
    text = Path(recipe).read_text(encoding="utf-8")
    return LoadedRecipe(checked.config, Path(recipe), merged.origins, text, flags)


def _rule_problems(
    config: Config, flags: Flags, bad: set[Key], origins: Mapping[Key, Origin], recipe: str
) -> list[Problem]:
    found: Iterable[tuple[Key, str]] = [
        *rules.broken(config, flags, bad),
        *((key, message) for key, message in not_yet.refusals(config) if key not in bad),
    ]
    top = Origin(recipe, 1)
    return [Problem(origin_of(key, origins, top), dotted(key), message) for key, message in found]


def _defaults() -> dict[str, Any]:
    """The defaults of all keys, for `${...}`."""
    tree = Config.model_construct().model_dump(mode="json", warnings=False)
    return json.loads(json.dumps(tree))
