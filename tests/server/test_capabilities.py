"""The probe's findings about a server, and the messages where the run needs more."""

import asyncio

import pytest

from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource
from asyncgrpo.server.capabilities import check, choose_endpoint, probe, served_facts
from asyncgrpo.server.failures import EngineDeadError

LORA = ("model.peft={r: 16}", "rollout.max_staleness=4", "sync.backend=adapter")


async def findings(client, config):
    return check(await probe(client, config), config)


async def test_a_server_that_fits_gets_no_complaint(client, make_config):
    config = make_config()
    found = await probe(client, config)
    assert found.endpoint is client.endpoint is Endpoint.PACKED
    assert (found.block_size, found.lora_routes) == (16, True)
    assert check(found, config) == ((), ())


@pytest.mark.parametrize(
    ("missing", "endpoint"),
    [
        ({}, Endpoint.PACKED),
        ({"packed": False}, Endpoint.GENERATE),
        ({"packed": False, "scale_out": False}, Endpoint.COMPLETIONS),
    ],
)
async def test_the_best_endpoint_that_answers_is_used(
    fake, client, make_request, missing, endpoint
):
    for name, value in missing.items():
        setattr(fake.state, name, value)
    assert await choose_endpoint(client, "fake", SamplingParams(num_logprobs=3)) is endpoint
    assert (await client.generate(make_request())).output_ids.size


async def test_a_server_left_paused_by_a_killed_trainer_is_let_go(fake, client, make_config):
    fake.state.paused = True
    async with asyncio.timeout(60):
        await probe(client, make_config())
    assert not fake.state.paused


async def test_a_slower_endpoint_is_a_warning(fake, client, make_config):
    fake.state.packed = False
    errors, warnings = await findings(client, make_config())
    assert not errors
    assert "--middleware asyncgrpo.server.packed.PackedEndpoint" in warnings[0]


async def test_no_logprobs_are_asked_of_a_server_where_nothing_is_centered(
    fake, client, make_config
):
    fake.state.max_logprobs = 0
    errors, _ = await findings(client, make_config("loss.score_centering=false"))
    assert not errors
    with pytest.raises(ServerError, match="start it with a larger --max-logprobs"):
        await findings(client, make_config())


async def test_no_endpoint_at_all_lists_what_each_said(fake, client):
    fake.state.fail_next = [404, 403, 404]
    with pytest.raises(ServerError, match="generates through no endpoint") as refused:
        await choose_endpoint(client, "fake", SamplingParams())
    assert all(endpoint.value in str(refused.value) for endpoint in Endpoint)


async def test_an_engine_that_dies_of_the_first_request_says_why_it_might(fake, client):
    fake.state.dead = True
    with pytest.raises(EngineDeadError, match=r"died of the first request.*head_dim"):
        await choose_endpoint(client, "fake", SamplingParams())


@pytest.mark.parametrize(
    ("served", "overrides", "message"),
    [
        pytest.param(
            {"max_loras": 5},
            LORA,
            "vLLM serves 5 LoRA slots; max_staleness 4 needs 6: start it with --max-loras 6",
            id="slots",
        ),
        pytest.param({"max_lora_rank": 8}, LORA, "start it with --max-lora-rank 16", id="rank"),
        pytest.param({"enable_lora": False}, LORA, "start it with --enable-lora", id="no lora"),
        pytest.param({"model": "other"}, (), "vLLM serves other, not fake", id="model"),
        pytest.param({"max_model_len": 128}, (), "start it with --max-model-len 256", id="context"),
        pytest.param({"dev_mode": False}, (), "VLLM_SERVER_DEV_MODE=1", id="dev mode"),
        pytest.param(
            {"logprobs_mode": "raw_logprobs"},
            (),
            "start it with --logprobs-mode processed_logprobs",
            id="logprobs mode",
        ),
        pytest.param(
            {"weight_transfer_backend": "nccl"},
            (),
            """vLLM's weight transfer is nccl; sync.backend folder needs \
--weight-transfer-config '{"backend": "folder"}'""",
            id="weight transfer",
        ),
        pytest.param({"weight_transfer_backend": None}, (), "weight transfer is off", id="off"),
    ],
)
async def test_each_thing_missing_is_one_error_that_names_the_flag(
    fake, client, make_config, served, overrides, message
):
    for name, value in served.items():
        setattr(fake.state, name, value)
    errors, _ = await findings(client, make_config(*overrides))
    assert len(errors) == 1
    assert errors[0].startswith(fake.url)
    assert message in errors[0]


@pytest.mark.parametrize(("packed", "needed"), [(True, 8), (False, 9)])
async def test_max_logprobs_counts_the_one_more_that_generate_asks_for(
    fake, client, make_config, packed, needed
):
    config = make_config()
    fake.state.packed = packed
    fake.state.max_logprobs = 9
    found = await probe(client, config)
    assert not check(found, config).errors
    fake.state.max_logprobs = needed - 1
    found = type(found)(**{**vars(found), "info": await client.server_info()})
    assert f"start it with --max-logprobs {needed}" in check(found, config).errors[0]


NUCLEUS = ("rollout.top_p=0.9", "rollout.top_k=12")


@pytest.mark.parametrize(
    ("served", "overrides", "source"),
    [
        pytest.param({}, (), CandidateSource.NONE, id="nothing is truncated"),
        pytest.param({}, NUCLEUS, CandidateSource.TOP, id="top_k logprobs are allowed"),
        pytest.param({"max_logprobs": 12}, NUCLEUS, CandidateSource.TOP, id="just so"),
        pytest.param({"max_logprobs": 11}, NUCLEUS, CandidateSource.NONE, id="one too few"),
        pytest.param({"lists_masks": True}, NUCLEUS, CandidateSource.MASK, id="a mask"),
        pytest.param(
            {"lists_masks": True, "max_logprobs": 11},
            NUCLEUS,
            CandidateSource.MASK,
            id="a mask where logprobs would not do",
        ),
        pytest.param(
            {"packed": False, "lists_masks": True}, NUCLEUS, CandidateSource.MASK, id="generate"
        ),
        pytest.param(
            {"packed": False, "scale_out": False, "lists_masks": True},
            NUCLEUS,
            CandidateSource.TOP,
            id="completions, which carries no mask",
        ),
    ],
)
async def test_candidate_sets_come_from_the_best_source_that_is_there(
    fake, client, make_config, served, overrides, source
):
    for name, value in served.items():
        setattr(fake.state, name, value)
    config = make_config(*overrides)
    found = await probe(client, config)
    assert found.candidates is client.candidates is source
    errors, warnings = check(found, config)
    assert not errors
    biased = [warning for warning in warnings if "every ratio is biased" in warning]
    assert bool(biased) is (bool(overrides) and source is CandidateSource.NONE)
    assert all("start vLLM with --max-logprobs 12" in warning for warning in biased)


async def test_adapter_routes_off_are_an_error_though_lora_is_on(client, make_config):
    config = make_config(*LORA)
    found = await probe(client, config)
    found = type(found)(**{**vars(found), "lora_routes": False})
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in check(found, config).errors[0]


async def test_another_dtype_is_a_warning(fake, client, make_config):
    fake.state.dtype = "bfloat16"
    errors, warnings = await findings(client, make_config())
    assert not errors
    assert "vLLM computes in bfloat16 and the trainer in float32" in warnings[0]
    assert "--dtype float32" in warnings[0]


async def test_all_errors_come_at_once(fake, client, make_config):
    fake.state.max_loras, fake.state.max_lora_rank = 1, 8
    fake.state.logprobs_mode = "raw_logprobs"
    errors, _ = await findings(client, make_config(*LORA))
    assert len(errors) == 3


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ({}, None),
        ({"enable_lora": False}, "vLLM serves no LoRA adapters"),
        ({"max_lora_rank": 8}, "vLLM takes LoRA rank 8"),
        ({"max_loras": 5}, "vLLM serves 5 LoRA slots"),
        ({"enable_lora": False, "weight_transfer_backend": None}, None),  # nor merged weights
    ],
)
async def test_adapters_are_merged_where_a_server_takes_only_whole_weights(
    fake, client, make_config, server, reason
):
    for name, value in server.items():
        setattr(fake.state, name, value)
    config = make_config(*LORA)
    facts = served_facts([await probe(client, config)], config)
    assert facts.max_model_len == fake.state.max_model_len
    if reason is None:
        assert facts.adapters_refused is None
    else:
        assert facts.adapters_refused.startswith(f"{client.base_url}: {reason}")
    whole = make_config("model.peft={r: 16}", "rollout.max_staleness=4", "sync.backend=folder")
    assert served_facts([await probe(client, whole)], whole).adapters_refused is None
