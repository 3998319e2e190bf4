"""The configuration: one frozen tree, from a recipe in YAML to `config.json`.

recipe.yaml --load_recipe--> LoadedRecipe.config --derive--> Config --write_resolved--> config.json
                                                                <--load_resolved--
"""

from asyncgrpo.config.base import known
from asyncgrpo.config.resolved import load_resolved, write_resolved
from asyncgrpo.config.rollout import RewardSource
from asyncgrpo.config.tree import Config

__all__ = ["Config", "RewardSource", "known", "load_resolved", "write_resolved"]
