"""The derived values and their reasons."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config import Config, Facts, derive, known, local_facts, resolve
from asyncgrpo.config.derive import keys_derived
from asyncgrpo.config.facts import has_delta_net, kv_bytes_per_token
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import VALID, load, write


def config_of(**sections) -> Config:
    model = {"name_or_path": "org/model"} | sections.pop("model", {})
    return Config.model_validate({"model": model} | sections)


NOTHING_KNOWN = Facts()


def derived(facts: Facts = NOTHING_KNOWN, **sections) -> Config:
    return derive(config_of(**sections), facts).config


def test_a_machine_without_a_gpu():
    config = derived(Facts(recipe_name="demo", working_dir="/w", model_max_positions=512))
    assert config.run.name == "demo"
    assert config.run.dir == "/w/runs/demo"
    assert config.sync.path == "/w/runs/demo/served"
    assert config.model.attn_backend == "sdpa"
    assert config.server.devices == config.trainer.devices == ()
    assert config.server.dtype == "float32"
    assert config.server.max_model_len == config.trainer.token_budget == 512
    assert config.trainer.nproc_per_node == 1
    assert config.trainer.sharding == "none"
    assert config.trainer.bf16 is False
    assert config.loss.epsilon_high == 0.2
    assert config.sync.backend == "folder"
    assert config.sync.keep_versions == 5
    assert config.sync.attest_tolerance == 1e-3


def test_a_machine_with_gpus_is_shared_out():
    config = derived(Facts(cuda_count=8), server={"tensor_parallel_size": 2})
    assert config.server.devices == (0, 1)
    assert config.trainer.devices == (2, 3, 4, 5, 6, 7)
    assert config.trainer.nproc_per_node == 6
    assert config.trainer.sharding == "fsdp2"
    assert config.trainer.bf16 is True
    assert config.model.attn_backend == "auto"  # the trainer chooses, layer by layer
    assert config.server.gpu_memory_utilization is None
    assert config.sync.attest_tolerance == 0.1


@pytest.mark.parametrize(
    ("count", "server", "trainer", "expected"),
    [
        (4, {}, {"nproc_per_node": 2}, ((0,), (1, 2))),
        (4, {}, {"devices": (0, 1)}, ((2,), (0, 1))),
        (4, {"devices": (3,)}, {}, ((3,), (0, 1, 2))),
        (2, {"devices": ()}, {}, ((), (0, 1))),
        (2, {"urls": ("http://h:1",)}, {}, ((), (0, 1))),
        (2, {"tensor_parallel_size": 2}, {}, ((0, 1), (0, 1))),
    ],
)
def test_devices_that_are_named_stay(count, server, trainer, expected):
    config = derived(Facts(cuda_count=count), server=server, trainer=trainer)
    assert (config.server.devices, config.trainer.devices) == expected


def test_the_only_gpu_is_shared():
    config = derived(Facts(cuda_count=1))
    assert config.server.devices == config.trainer.devices == (0,)
    assert config.server.gpu_memory_utilization == 0.45
    assert config.trainer.nproc_per_node == 1


@pytest.mark.parametrize(
    ("peft", "backend", "reason"),
    [
        ({"r": 16}, "adapter", "an adapter that servers load"),
        ({"r": 600}, "folder", "rank 600 is above 512"),
        ({"use_dora": True}, "folder", "use_dora"),
        ({"modules_to_save": ["embed_tokens"]}, "folder", "modules_to_save"),
        ({"rank_pattern": {"q_proj": 513}}, "folder", "rank 513"),
    ],
)
def test_adapters_are_synced_as_such_where_servers_load_them(peft, backend, reason):
    result = derive(config_of(model={"peft": peft}), Facts())
    assert result.config.sync.backend == backend
    (why,) = [item.reason for item in result.derived if item.key == "sync.backend"]
    assert reason in why


def test_an_adapter_is_merged_for_servers_that_take_none():
    facts = Facts(adapters_refused="http://h:1: vLLM serves no LoRA adapters")
    result = derive(config_of(model={"peft": {"r": 4}}), facts)
    assert result.config.sync.backend == "folder"
    (why,) = [item.reason for item in result.derived if item.key == "sync.backend"]
    assert why == "merged, as http://h:1: vLLM serves no LoRA adapters"
    named = config_of(model={"peft": {"r": 4}}, sync={"backend": "adapter"})
    assert derive(named, facts).config.sync.backend == "adapter"


def test_half_precision_is_attested_less_tightly():
    tolerances = [
        known(config.sync.attest_tolerance)
        for config in (
            derived(server={"dtype": "float32"}),
            derived(trainer={"fp16": True}),
            derived(server={"dtype": "bfloat16"}),
        )
    ]
    assert tolerances == sorted(set(tolerances))


def test_where_the_trained_type_is_not_known_the_served_one_is_attested():
    open_yet = derived(server={"dtype": "float16"}, model={"dtype": "auto"})
    assert open_yet.sync.attest_tolerance == derived(trainer={"fp16": True}).sync.attest_tolerance


def test_the_checkpoint_s_own_type():
    config = derived(Facts(model_dtype="bfloat16"), model={"dtype": "auto"})
    assert config.model.dtype == config.server.dtype == "bfloat16"
    open_yet = derived(model={"dtype": "auto"})
    assert (open_yet.model.dtype, open_yet.server.dtype) == ("auto", None)
    assert open_yet.sync.attest_tolerance is None


def test_the_server_fills_in_what_only_it_knows():
    first = derived(Facts(recipe_name="demo"))
    assert first.server.max_model_len is None
    second = derive(first, Facts(served_max_model_len=4096, server_urls=("http://h:1",)))
    assert [item.key for item in second.derived] == [
        "server.urls",
        "server.max_model_len",
        "trainer.token_budget",
    ]
    assert second.config.trainer.token_budget == 4096
    assert second.config.run.name == "demo"


def test_a_recipe_s_name_becomes_a_run_s():
    assert derived(Facts(recipe_name="my first (run)")).run.name == "my-first-run"
    assert derived(Facts(recipe_name="...")).run.name == "run"


some_facts = st.builds(
    Facts,
    cuda_count=st.integers(0, 8),
    recipe_name=st.text(max_size=5),
    model_max_positions=st.none() | st.integers(1, 9999),
    model_dtype=st.none() | st.sampled_from(["bfloat16", "float16", "float64"]),
    server_urls=st.none() | st.just(("http://h:1",)),
    server_port=st.none() | st.integers(1, 65535),
    served_max_model_len=st.none() | st.integers(1, 9999),
)
some_configs = st.builds(
    config_of,
    model=st.fixed_dictionaries(
        {"dtype": st.sampled_from(["auto", "float32", "bfloat16"])},
        optional={"peft": st.fixed_dictionaries({"r": st.integers(1, 600)})},
    ),
    server=st.fixed_dictionaries({}, optional={"devices": st.just([0]), "port": st.just(8000)}),
    trainer=st.fixed_dictionaries(
        {}, optional={"fp16": st.just(value=True), "nproc_per_node": st.integers(1, 4)}
    ),
    rollout=st.fixed_dictionaries({"max_staleness": st.integers(0, 9)}),
)


@given(some_configs, some_facts)
def test_deriving_again_derives_nothing(config: Config, facts: Facts):
    once = derive(config, facts)
    again = derive(once.config, facts)
    assert again.derived == ()
    assert again.config == once.config


@given(some_configs, some_facts)
def test_only_open_values_change_and_each_has_a_reason(config: Config, facts: Facts):
    result = derive(config, facts)
    before, after = pairs(config), pairs(result.config)
    changed = {key: value for key, value in after.items() if value != before[key]}
    assert {item.key: item.value for item in result.derived} == changed
    assert all(pairs(config)[key] in (None, "auto") for key in changed)
    assert all(item.reason for item in result.derived)
    assert set(changed) <= set(keys_derived())


@given(some_configs, some_facts)
def test_what_is_derived_is_valid(config: Config, facts: Facts):
    result = derive(config, facts).config
    assert Config.model_validate_json(result.model_dump_json()) == result


def pairs(config: Config) -> dict:
    return {f"{section}.{leaf}": value for section, values in config for leaf, value in values}


def test_the_model_s_folder_is_read(tmp_path: Path):
    write(
        tmp_path,
        json.dumps({"text_config": {"max_position_embeddings": 777}, "dtype": "bfloat16"}),
        "m/config.json",
    )
    config = load(tmp_path, "model.name_or_path=m").config
    facts = local_facts(config, cuda_count=0, recipe_name="x")
    assert (facts.model_max_positions, facts.model_dtype) == (777, "bfloat16")


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    (tmp_path / "m").mkdir()
    config = load(tmp_path, "model.name_or_path=m").config
    with pytest.raises(ConfigError, match=r"model.name_or_path: .*/m is not a model"):
        local_facts(config, cuda_count=0, recipe_name="x")


def test_rules_hold_for_derived_values_too(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"yaml:5  rollout.max_completion_length: got 2048"):
        resolve(load(tmp_path), Facts(model_max_positions=1024))


def test_a_server_with_a_shorter_context_is_refused(tmp_path: Path):
    recipe = load(tmp_path, text=VALID + "server:\n  max_model_len: 4096\n")
    with pytest.raises(
        ConfigError, match=r"recipe.yaml:8  server.max_model_len: got 4096, but the "
    ):
        resolve(recipe, Facts(served_max_model_len=3000))
    resolve(recipe, Facts(served_max_model_len=9000))


def test_a_model_in_the_hub_s_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    config = load(tmp_path, "model.name_or_path=org/model").config
    unknown = local_facts(config, cuda_count=0, recipe_name="x")
    assert unknown.model_max_positions is None
    model = tmp_path / "hub" / "models--org--model"
    write(model, "abc", "refs/main")
    write(model, '{"max_position_embeddings": 99}', "snapshots/abc/config.json")
    assert local_facts(config, cuda_count=0, recipe_name="x").model_max_positions == 99


def test_a_name_that_can_be_nothing_is_refused(tmp_path: Path):
    config = load(tmp_path, "model.name_or_path='what is this'").config
    with pytest.raises(ConfigError, match="neither a folder nor a hub id"):
        local_facts(config, cuda_count=0, recipe_name="x")


def test_a_server_is_not_launched_without_a_known_context(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"server.max_model_len: cannot be derived"):
        resolve(load(tmp_path), Facts(server_urls=("http://127.0.0.1:1",)))
    resolve(load(tmp_path), Facts())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 2 (keys and values) x layers x heads x width x 4 bytes
        ({"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}, 2 * 3 * 4 * 16 * 4),
        (
            {
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "hidden_size": 64,
            },
            2 * 3 * 2 * 32 * 4,
        ),
        ({"hidden_size": 64}, None),
    ],
)
def test_the_kv_cache_of_a_token_follows_from_the_model(tmp_path: Path, model, expected):
    (tmp_path / "config.json").write_text(json.dumps(model))
    config = config_of(model={"name_or_path": str(tmp_path)})
    assert kv_bytes_per_token(config) == expected
    half = config_of(model={"name_or_path": str(tmp_path)}, server={"dtype": "bfloat16"})
    assert kv_bytes_per_token(half) == (expected and expected // 2)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"model_type": "qwen3_next"}, True),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, True),
        ({"model_type": "qwen3"}, False),
        ({}, False),
    ],
)
def test_a_hybrid_is_known_by_the_type_of_its_text_model(tmp_path: Path, model, expected):
    (tmp_path / "config.json").write_text(json.dumps(model))
    assert has_delta_net(config_of(model={"name_or_path": str(tmp_path)})) is expected
    assert not has_delta_net(config_of(model={"name_or_path": "org/not-here"}))
