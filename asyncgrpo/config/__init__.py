"""The configuration: one frozen tree, from a recipe in YAML to the run's `config.json`.

recipe.yaml --load_recipe--> LoadedRecipe --resolve--> Config --write_resolved--> config.json
                                                       Config <--load_resolved--- config.json
                             LoadedRecipe <--reload------------------------------ config.json
"""

from asyncgrpo.config.derive import Derivation, Derived, Facts, derive
from asyncgrpo.config.facts import local_facts
from asyncgrpo.config.load import LoadedRecipe, load_recipe, reload, resolve
from asyncgrpo.config.resolved import load_resolved, write_resolved
from asyncgrpo.config.sections.base import known
from asyncgrpo.config.sections.rollout import RewardSource
from asyncgrpo.config.sections.tree import Config

__all__ = [
    "Config",
    "Derivation",
    "Derived",
    "Facts",
    "LoadedRecipe",
    "RewardSource",
    "derive",
    "known",
    "load_recipe",
    "load_resolved",
    "local_facts",
    "reload",
    "resolve",
    "write_resolved",
]
