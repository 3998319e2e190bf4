"""extends, overrides, interpolation: who wins, and where each key was set."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgrpo.config.problems import Origin
from asyncgrpo.config.reading.merge import Layer, merge
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import VALID, load, write

scalars = st.integers() | st.booleans() | st.text("ab", max_size=2)
names = st.sampled_from(["a", "b", "c"])
trees = st.dictionaries(
    names,
    st.recursive(
        scalars | st.lists(scalars, max_size=2),
        lambda t: st.dictionaries(names, t, max_size=3),
        max_leaves=5,
    ),
)


def combined(*layers: dict) -> dict:
    return merge([Layer(tree, {}) for tree in layers], (), {}).tree


def test_the_later_file_wins_and_the_recipe_last(tmp_path: Path):
    write(tmp_path, "loss: {epsilon: 0.1, normalization: step}\n", "one.yaml")
    write(tmp_path, "loss: {epsilon: 0.2, score_centering: false}\n", "two.yaml")
    text = "extends: [one.yaml, two.yaml]\n" + VALID + "loss:\n  epsilon_high: 0.5\n"
    loss = load(tmp_path, text=text).config.loss
    assert (loss.epsilon, loss.normalization, loss.score_centering) == (0.2, "step", False)
    assert loss.epsilon_high == 0.5


def test_extends_is_relative_to_the_file_that_extends(tmp_path: Path):
    write(tmp_path, "extends: deeper/c.yaml\n", "parts/b.yaml")
    write(tmp_path, "run: {grace_s: 7}\n", "parts/deeper/c.yaml")
    assert load(tmp_path, text="extends: parts/b.yaml\n" + VALID).config.run.grace_s == 7


def test_a_file_may_be_extended_twice_but_not_by_itself(tmp_path: Path):
    write(tmp_path, "run: {grace_s: 7}\n", "base.yaml")
    write(tmp_path, "extends: base.yaml\n", "one.yaml")
    load(tmp_path, text="extends: [one.yaml, base.yaml]\n" + VALID)
    write(tmp_path, "extends: recipe.yaml\n", "one.yaml")
    with pytest.raises(ConfigError, match=r"one.yaml:1  extends: .*recipe.yaml extends itself"):
        load(tmp_path, text="extends: [one.yaml]\n" + VALID)


def test_a_missing_base_is_named_with_the_line_that_asks_for_it(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"recipe.yaml:2  extends: no such file: .*nope.yaml"):
        load(tmp_path, text="extends:\n  - nope.yaml\n" + VALID)


def test_lists_are_replaced_and_mappings_merged(tmp_path: Path):
    write(tmp_path, "server: {env: {A: '1', B: '2'}}\nrollout: {stop: [x, y]}\n", "base.yaml")
    text = "extends: base.yaml\n" + VALID + "  stop: [z]\nserver:\n  env: {B: '3'}\n"
    config = load(tmp_path, text=text).config
    assert config.rollout.stop == ("z",)
    assert config.server.env == {"A": "1", "B": "3"}


def test_an_empty_section_changes_nothing(tmp_path: Path):
    write(tmp_path, "loss: {epsilon: 0.1}\n", "base.yaml")
    config = load(
        tmp_path, text="extends: base.yaml\n" + VALID + "loss:\n  # epsilon: 0.3\n"
    ).config
    assert config.loss.epsilon == 0.1


def test_overrides_have_yaml_values_and_the_last_word(tmp_path: Path):
    config = load(
        tmp_path,
        "trainer.learning_rate=1e-5",
        "trainer.devices=[0, 1]",
        "loss.score_centering=false",
        "data.system_prompt='a=b: c'",
        "server.extra_args.max-num-seqs=64",
        "run.name='8'",
        "checkpoint.save_total_limit=",
        "loss.epsilon=0.3",
        "loss.epsilon=0.4",
    ).config
    assert config.trainer.learning_rate == 1e-5
    assert config.trainer.devices == (0, 1)
    assert config.loss.score_centering is False
    assert config.data.system_prompt == "a=b: c"
    assert config.server.extra_args == {"max-num-seqs": 64}
    assert config.run.name == "8"
    assert config.checkpoint.save_total_limit is None
    assert config.loss.epsilon == 0.4


def test_a_mapping_override_merges_and_null_takes_it_away(tmp_path: Path):
    text = VALID.replace("data:", "  peft: {r: 4, lora_alpha: 8}\ndata:")
    peft = load(tmp_path, "model.peft={r: 16}", text=text).config.model.peft
    assert (peft.r, peft.lora_alpha) == (16, 8)
    assert load(tmp_path, "model.peft=null", text=text).config.model.peft is None


def test_interpolation_sees_every_key_defaults_too(tmp_path: Path):
    text = VALID + (
        "  seed: ${trainer.seed}\n"
        "  max_staleness: ${sync.weight_sync_steps}\n"
        "run:\n  name: grpo-${rollout.num_generations}x${rollout.seed}\n"
    )
    config = load(tmp_path, "rollout.num_generations=4", text=text).config
    assert config.rollout.seed == 42
    assert config.rollout.max_staleness == 1
    assert config.run.name == "grpo-4x42"


def test_a_whole_section_can_be_interpolated(tmp_path: Path):
    text = VALID + "server:\n  env: {A: b}\n  extra_args: ${server.env}\n"
    config = load(tmp_path, text=text).config
    assert config.server.extra_args == {"A": "b"}


def test_dollar_braces_can_be_escaped(tmp_path: Path):
    config = load(tmp_path, r"data.system_prompt='costs \${5}'").config
    assert config.data.system_prompt == "costs ${5}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${trainer.max_stepz}", "cannot interpolate .*'trainer.max_stepz' not found"),
        ("${run.name}", "cannot interpolate"),
        ("${open", r"got '\$\{open', expected \$\{section.key\}"),
        ("${oc.env:HOME}", ".*resolvers are not run"),
        ("???", "still to be filled in"),
    ],
)
def test_an_interpolation_that_fails_names_its_key(tmp_path: Path, value: str, message: str):
    with pytest.raises(ConfigError, match=rf"recipe.yaml:8  run.name: {message}"):
        load(tmp_path, text=VALID + f"run:\n  name: {value}\n")


def test_a_part_may_leave_keys_to_be_filled_in(tmp_path: Path):
    write(tmp_path, "run: {name: '???'}\ndata: {eval: {path: '???'}}\n", "base.yaml")
    text = "extends: base.yaml\n" + VALID + "run: {name: '${model.nothing}'}\n"
    text = text.replace("org/prompts\n", "org/prompts\n  eval: null\n")
    assert load(tmp_path, "run.name=demo", text=text).config.run.name == "demo"


def test_the_source_of_every_key_is_known(tmp_path: Path):
    base = write(tmp_path, "loss:\n  epsilon: 0.1\n  epsilon_high: 0.2\n", "base.yaml")
    text = "extends: base.yaml\n" + VALID + "loss:\n  epsilon: 0.15\n"
    recipe = load(tmp_path, "loss.normalization=step", text=text)
    assert recipe.source(("loss", "epsilon")) == Origin(str(recipe.path), 9)
    assert recipe.source(("loss", "epsilon_high")) == Origin(str(base), 3)
    assert recipe.source(("loss", "normalization")) == Origin("override 'loss.normalization=step'")
    assert recipe.source(("loss",)) == Origin(str(recipe.path), 8)
    assert recipe.text == text


@settings(max_examples=50)
@given(trees)
def test_merging_with_nothing_changes_nothing(tree: dict):
    assert (
        combined(tree) == combined(tree, {}) == combined({}, tree) == combined(tree, tree) == tree
    )


@settings(max_examples=50)
@given(trees, trees, trees)
def test_layers_are_laid_one_by_one(a: dict, b: dict, c: dict):
    assert combined(combined(a, b), c) == combined(a, b, c)


@settings(max_examples=50)
@given(trees, trees)
def test_the_later_layer_keeps_all_it_says(a: dict, b: dict):
    def within(part: object, whole: object) -> bool:
        if isinstance(part, dict):
            return isinstance(whole, dict) and all(within(v, whole.get(k)) for k, v in part.items())
        return part == whole

    assert within(b, combined(a, b))
