"""Entries of `model.peft` that match no module are refused, each with the names there are."""

import pytest
from transformers import AutoModelForCausalLM, Qwen3Config

from asyncgrpo.config.sections.model import PeftConfig
from asyncgrpo.errors import ConfigError
from asyncgrpo.training.model.adapter_names import ModuleNames, refuse_unmatched
from asyncgrpo.training.model.model import _with_adapter

LINEAR = [
    f"model.layers.{layer}.{part}"
    for layer in range(2)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")
]
NAMES = ModuleNames(
    every=["", "model", "model.layers.0.mlp", "model.norm", "model.embed_tokens", *LINEAR],
    weighted=["model.norm", "model.embed_tokens", *LINEAR],
    linear=LINEAR,
)


@pytest.mark.parametrize(
    ("peft", "message"),
    [
        (
            {"target_modules": ["q_proj", "w_proj"]},
            r"`w_proj` matches no module with a weight; did you mean `\w_proj`\? there are: q_p",
        ),
        ({"target_modules": ["roj"]}, "target_modules: `roj`"),
        ({"target_modules": ["layers.0.q_proj"]}, r"mean `model.layers.0.self_attn.q_proj`"),
        ({"modules_to_save": ["nrm"]}, r"modules_to_save: `nrm` .*did you mean `norm`\?"),
        ({"rank_pattern": {"k_proj": 4}}, "rank_pattern: `k_proj` matches no module that gets an"),
        ({"rank_pattern": {r"layers\.7\..*": 4}}, r"rank_pattern: `layers\\.7"),
        ({"target_modules": ["q_proj"], "alpha_pattern": {"up_proj": 4}}, "_pattern: `up_proj`"),
        ({"alpha_pattern": {"(": 4}}, r"alpha_pattern: `\(` is no regular expression"),
        ({"target_modules": "("}, r"target_modules: `\(` is no regular expression"),
    ],
)  # fmt: skip
def test_an_entry_that_matches_nothing_is_refused(peft, message):
    with pytest.raises(ConfigError, match=message):
        refuse_unmatched(PeftConfig(**peft), NAMES)


def test_all_of_them_are_told_at_once():
    peft = PeftConfig(target_modules=("q_proj", "a"), modules_to_save=("b",), rank_pattern={"c": 4})
    with pytest.raises(ConfigError) as told:
        refuse_unmatched(peft, NAMES)
    assert [line.split("`")[1] for line in str(told.value).splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "peft",
    [
        {},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["model.layers.0.mlp.up_proj"]},
        {"target_modules": r".*\.[qv]_proj", "alpha_pattern": {"v_proj": 4}},
        {"modules_to_save": ["mlp", "norm"]},
        {"rank_pattern": {r"layers\.1\..*": 4, "self_attn.q_proj": 8}},
    ],
)
def test_entries_that_match_are_taken(peft):
    refuse_unmatched(PeftConfig(**peft), NAMES)


@pytest.mark.filterwarnings("error")
def test_a_real_models_names_are_those_that_peft_adapts():
    def adapted(**peft):
        config = Qwen3Config(
            hidden_size=16, intermediate_size=16, vocab_size=32, head_dim=8,
            num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config)
        made = _with_adapter(model, PeftConfig(**peft), None, merged=False)
        names = made.base_model.targeted_module_names
        assert isinstance(names, list)
        return len(names)

    assert adapted() == 2 * 7
    assert adapted(rank_pattern={"layers.1.self_attn.q_proj": 4}) == 2 * 7
    assert adapted(target_modules=["q_proj", "k_proj"]) == 2 * 2
    with pytest.raises(
        ConfigError, match="`nope` matches no module with a weight; there are: down"
    ):
        adapted(target_modules=["nope"])
