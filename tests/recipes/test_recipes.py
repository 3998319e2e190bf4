"""The recipes themselves: each is valid, and says what its file's first lines promise."""

from pathlib import Path

import pytest

from asyncgrpo.config import load_recipe
from asyncgrpo.rollout.scoring.scoring import load_rewards
from asyncgrpo.rollout.tools.environments import load_environments
from asyncgrpo.rollout.tools.tools import load_tools

RECIPES = Path(__file__).parents[2] / "recipes"
NEEDS_REAL_MODEL = {"smollm2-cpu.yaml", "gsm8k-cpu.yaml"}  # `make real-model` makes it


def load(name):
    # The model of some is made by a script and not committed.
    return load_recipe(RECIPES / name, paths_must_exist=name not in NEEDS_REAL_MODEL).config


def test_every_recipe_of_the_folder_is_tried_here():
    assert {path.name for path in RECIPES.glob("*.yaml")} >= NEEDS_REAL_MODEL | {
        "demo.yaml",
        "demo-lora.yaml",
        "tools.yaml",
        "counter.yaml",
    }


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_it_is_valid(name):
    config = load(name)
    assert config.trainer.max_steps > 0
    assert config.rollout.rewards or config.rollout.environments


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_its_rewards_import_and_need_no_column_but_the_dataset_s(name):
    columns = ["question", "answer"] if name.startswith("gsm8k") else ["prompt", "answer"]
    sources = load(name).rollout.rewards
    assert len(load_rewards(sources, columns)) == len(sources)


@pytest.mark.parametrize("name", ["tools.yaml", "counter.yaml"])
def test_what_its_policy_calls_can_be_described_to_it(name):
    rollout = load(name).rollout
    environments = load_environments(rollout.environments, most_instances=1, timeout_s=1)
    assert load_tools(rollout.tools) or environments


def test_the_demo_trains_all_weights_and_publishes_them_through_a_folder():
    config = load("demo.yaml")
    assert config.model.peft is None
    assert config.sync.backend == "folder"


def test_the_lora_demo_differs_only_in_what_is_trained_and_how_it_is_published():
    full, lora = load("demo.yaml"), load("demo-lora.yaml")
    assert lora.model.peft is not None
    assert lora.sync.backend == "adapter"
    assert lora.rollout == full.rollout
    assert lora.data == full.data
    assert lora.server == full.server
