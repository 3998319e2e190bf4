"""Broken recipes and exactly what their authors read."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.config import Config, load_recipe
from asyncgrpo.config.describe import sections_at
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import VALID, load, write

SEEDS = "a whole number >= -9223372036854775808 and < 9223372036854775808"
BROKEN = {
    "a misspelt key": (
        VALID + "  max_stalenes: 2\n",
        "recipe.yaml:7  rollout.max_stalenes: unknown key; did you mean `max_staleness`?",
    ),
    "a key in the wrong section": (
        VALID + "loss:\n  learning_rate: 1.0e-6\n",
        "recipe.yaml:8  loss.learning_rate: unknown key; did you mean `trainer.learning_rate`?",
    ),
    "an unknown section": (
        VALID + "traner:\n  max_steps: 3\n",
        "recipe.yaml:7  traner: unknown key; did you mean `trainer`?",
    ),
    "a wrong type": (
        VALID + "  num_generations: eight\n",
        "recipe.yaml:7  rollout.num_generations: got 'eight', expected a whole number >= 2",
    ),
    "a value out of range": (
        VALID + "trainer:\n  adam_beta1: 1.5\n",
        "recipe.yaml:8  trainer.adam_beta1: got 1.5, expected a number >= 0 and < 1",
    ),
    "a seed that no generator takes": (
        VALID + f"trainer:\n  seed: {2**70}\n",
        f"recipe.yaml:8  trainer.seed: got {2**70}, expected {SEEDS}",
    ),
    "a seed below all that a generator takes": (
        VALID + f"  seed: {-(2**63) - 1}\n",
        f"recipe.yaml:7  rollout.seed: got -9223372036854775809, expected {SEEDS}",
    ),
    "a dropout that drops everything": (
        VALID.replace(
            "name_or_path: org/model", "name_or_path: org/model\n  peft: {lora_dropout: 1.0}"
        ),
        "recipe.yaml:3  model.peft.lora_dropout: got 1.0, expected a number >= 0 and < 1",
    ),
    "an unknown choice": (
        VALID + "loss:\n  normalization: steps\n",
        (
            "recipe.yaml:8  loss.normalization: got 'steps', expected one of microbatch, step; "
            "did you mean `step`?"
        ),
    ),
    "a required key that is missing": (
        VALID.replace("name_or_path: org/model", "revision: main"),
        "recipe.yaml:1  model.name_or_path: missing; expected text",
    ),
    "a key set twice": (
        VALID + "  seed: 1\n  seed: 2\n",
        "recipe.yaml:8  rollout.seed: set twice; first on line 7",
    ),
    "a section misspelled, and nothing of what it leaves unset": (
        VALID.replace("rollout:", "rolout:"),
        "recipe.yaml:5  rolout: unknown key; did you mean `rollout`?",
    ),
    "a template without its quotes": (
        VALID.replace("path: org/prompts", "path: org/prompts\n  prompt_template: {question}"),
        (
            "recipe.yaml:5  data.prompt_template: got a mapping of 1 keys, expected text, or null; "
            "text that begins with a brace goes in quotes"
        ),
    ),
    "YAML that is none": (
        VALID + "  stop: ['a\n",
        "recipe.yaml:8  not valid YAML: found unexpected end of stream",
    ),
    "a reward with an unknown key": (
        VALID.replace("[package.rewards:right]", "\n  - path: a:f\n    weigth: 2"),
        "recipe.yaml:8  rollout.rewards[0].weigth: unknown key; did you mean `weight`?",
    ),
    "an import path that is none": (
        VALID.replace("package.rewards:right", "package.rewards.right"),
        (
            "recipe.yaml:6  rollout.rewards[0]: got 'package.rewards.right', expected "
            "package.module:name or ./file.py:name"
        ),
    ),
    "two keys that do not go together": (
        VALID + "trainer:\n  lr_scheduler_type: linear\n",
        (
            "recipe.yaml:7  trainer.max_steps: missing; trainer.lr_scheduler_type = linear decays "
            "to the last step"
        ),
    ),
    "something a later version brings": (
        VALID.replace("org/model\n", "org/model\n  torch_compile: true\n"),
        (
            "recipe.yaml:3  model.torch_compile: not yet available: model.torch_compile = true; "
            "use false"
        ),
    ),
    "a key of other trainers that this one does not take": (
        VALID + "  repetition_penalty: 1.1\n",
        (
            "recipe.yaml:7  rollout.repetition_penalty: not a key: the policy that is trained "
            "would not be the one that is saved; reward what repeats itself less"
        ),
    ),
    "an interpolation of nothing": (
        VALID + "  seed: ${trainer.sed}\n",
        (
            "recipe.yaml:7  rollout.seed: cannot interpolate '${trainer.sed}': "
            "Interpolation key 'trainer.sed' not found"
        ),
    ),
    "a dotted key": (
        VALID + "loss.epsilon: 0.1\n",
        (
            "recipe.yaml:7  loss.epsilon: unknown key; write one key per level, or `key=value` on "
            "the command line"
        ),
    ),
    "a section that is no mapping": (
        VALID + "run: 5\n",
        "recipe.yaml:7  run: got 5, expected a mapping with name, dir, grace_s",
    ),
    "a port out of range": (
        VALID + "server:\n  port: 99999\n",
        "recipe.yaml:8  server.port: got 99999, expected auto, or a whole number >= 1 and <= 65535",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_recipe_is_answered_with_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_recipe("recipe.yaml")
    assert str(error.value) == message


def test_all_errors_come_at_once_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "loss:\n  epsilon: 2\nnonsense: 1\n", "base.yaml")
    write(
        tmp_path,
        "extends: base.yaml\n"
        + VALID.replace("[package.rewards:right]", "[]")
        + "  temperature: hot\n  max_stalenes: 1\n"
        + "server:\n  host: 0.0.0.0\n  max_model_len: no\n",
    )
    with pytest.raises(ConfigError) as error:
        load_recipe("recipe.yaml", ["loss.correction=ice", "nonsense", "run.nam=x"])
    lines = str(error.value).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "base.yaml:2",
        "base.yaml:3",
        "recipe.yaml:7",
        "recipe.yaml:8",
        "recipe.yaml:9",
        "recipe.yaml:11",
        "recipe.yaml:12",
        "override 'loss.correction=ice'",
        "override 'nonsense'",
        "override 'run.nam=x'",
    ]
    assert lines[-1] == "override 'run.nam=x'  run.nam: unknown key; did you mean `name`?"
    assert lines[-2] == "override 'nonsense'  expected key=value, such as loss.epsilon=0.1"


def test_every_bad_item_of_a_list_is_named(tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "trainer.devices=[0, x, -1]")
    keys = [line.split("  ")[1].split(":")[0] for line in str(error.value).splitlines()]
    assert keys == ["trainer.devices[1]", "trainer.devices[2]"]


def test_a_rule_is_silent_about_a_key_that_has_a_problem(tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "rollout.max_completion_length=x", "server.max_model_len=10")
    assert "shares the context" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_missing_recipe_and_a_folder_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope.yaml  no such file"):
        load_recipe(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="got a folder, expected a recipe"):
        load_recipe(tmp_path)


def test_an_override_of_extends_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="belongs in a recipe"):
        load(tmp_path, "extends=[a.yaml]")


def test_overrides_that_are_not_yaml_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=re.escape("override 'run.name=['  run.name: not valid")):
        load(tmp_path, "run.name=[")


def test_an_empty_recipe_lacks_what_is_required(tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text="")
    keys = [line.split("  ")[1].split(":")[0] for line in str(error.value).splitlines()]
    assert keys == ["data.path", "model.name_or_path", "rollout.rewards"]


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "auto", "a:b", "./x.py:f", "a/b", "${loss.epsilon}", "${x", "???", "."])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "r", "x", "weight"]), inner, max_size=3)
    ),
    max_leaves=4,
)
sections = [name for name, info in Config.model_fields.items()]
keys = sorted(
    {
        leaf
        for info in Config.model_fields.values()
        for section in sections_at(info.annotation)
        for leaf in section.model_fields
    }
)
recipes = st.dictionaries(
    st.sampled_from([*sections, "extends", "nonsense"]),
    values | st.dictionaries(st.sampled_from(keys), values, max_size=6),
    max_size=6,
)
overrides = st.lists(
    st.builds(
        "{}.{}={}".format,
        st.sampled_from(sections),
        st.sampled_from([*keys, "peft.r", "rewards.0", ""]),
        values.map(json.dumps),
    ),
    max_size=3,
)


@settings(max_examples=50)
@given(recipes, overrides)
def test_whatever_a_recipe_holds_its_author_gets_a_message(
    tmp_path_factory: pytest.TempPathFactory, recipe: dict, overrides: list[str]
):
    file = write(tmp_path_factory.getbasetemp(), json.dumps(recipe), "any.yaml")
    try:
        load_recipe(file, overrides)
    except ConfigError as error:
        for line in str(error).splitlines():
            assert line.startswith((f"{file}:", "override '")), line
