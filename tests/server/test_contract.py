"""The contract of fake and real vLLM: both answer alike.

One real server, on CPU, for the whole module. A case is one HTTP call that both servers get; the
fake's answer must have the same status, and each of its keys must be in the real answer with a
value of the same type.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncgrpo.config import Facts, load_recipe, resolve
from asyncgrpo.records import NO_TOKEN, SamplingParams, Turn, TurnRequest, VersionSpan
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource, is_truncated
from asyncgrpo.server.capabilities import check, probe
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.failures import UnknownModelError
from asyncgrpo.server.weight_folder import write_manifest
from tests.fake_vllm import FakeServer, FakeState
from tests.server.contract_calls import (
    CASES,
    CONTEXT,
    KEY,
    LONG,
    MODEL,
    SHORT,
    Call,
    decoded,
    misfit,
    send,
    turn_calls,
)
from tests.server.vllm_process import running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

TRIES = 20
RECIPE = f"""
model: {{name_or_path: {MODEL}}}
data: {{path: prompts.jsonl}}
rollout: {{rewards: [rewards:one], max_completion_length: 24, max_staleness: 1}}
server:
  max_model_len: {CONTEXT}
  devices: []
  api_key_env: CONTRACT_KEY
  # Both ways of syncing on one server.
  extra_args: {{enable-lora: true, max-lora-rank: 8, max-loras: 3}}
  env: {{VLLM_ALLOW_RUNTIME_LORA_UPDATING: "1", VLLM_CPU_KVCACHE_SPACE: "1"}}
trainer: {{max_steps: 5}}
"""


@pytest.fixture(scope="module", name="config")
def _config(tmp_path_factory: pytest.TempPathFactory):
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    recipe.write_text(RECIPE)
    loaded = load_recipe(recipe, paths_must_exist=False)
    return resolve(loaded, Facts(recipe_name="contract", working_dir=str(recipe.parent))).config


@pytest.fixture(scope="module", name="real_url")
def _real_url(config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with running_vllm(config, log, {"CONTRACT_KEY": KEY}) as url:
        yield url


@pytest.fixture(scope="module", name="fake_url")
def _fake_url() -> Iterator[str]:
    state = FakeState(model=MODEL, max_model_len=CONTEXT, max_loras=3, max_lora_rank=8, api_key=KEY)
    with FakeServer(state) as fake:
        yield fake.url


@pytest.fixture(scope="module", name="adapter")
def _adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "policy-v000001", rank=2)


@pytest.fixture(name="real")
async def _real(real_url: str):
    async with ServerClient(real_url, api_key=KEY) as client:
        yield client


def write_adapter(path: Path, *, rank: int) -> str:
    """An adapter on the first layer's q_proj that changes what the model says."""
    sizes = json.loads((Path(MODEL) / "config.json").read_text())
    width = sizes["num_attention_heads"] * sizes["head_dim"]
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    values = np.random.default_rng(0)
    tensors = {
        f"{prefix}.lora_A.weight": values.normal(size=(rank, sizes["hidden_size"])),
        f"{prefix}.lora_B.weight": values.normal(size=(width, rank)),
    }
    path.mkdir()
    save_file(
        {k: v.astype(np.float32) for k, v in tensors.items()}, path / "adapter_model.safetensors"
    )
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}
    adapter |= {"bias": "none", "task_type": "CAUSAL_LM", "base_model_name_or_path": MODEL}
    (path / "adapter_config.json").write_text(json.dumps(adapter))
    return str(path)


# The same calls to both


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CASES.items()])
def test_the_fake_answers_as_the_real_server(
    call: Call, real_url: str, fake_url: str, adapter: str
):
    real, fake = (send(url, call, adapter) for url in (real_url, fake_url))
    assert fake.status_code == real.status_code, (real.text[:500], fake.text[:500])
    assert misfit(decoded(fake), decoded(real)) is None


@pytest.mark.parametrize("case", ["models", "a turn, packed", "a turn, generate", "pause"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}], ids=["none", "wrong"])
def test_without_the_key_nothing_is_served_or_controlled(case, headers, real_url, fake_url):
    real, fake = (send(url, CASES[case], "", headers) for url in (real_url, fake_url))
    assert real.status_code == fake.status_code == 401
    assert misfit(decoded(fake), decoded(real)) is None


def test_health_and_metrics_need_no_key(real_url: str, fake_url: str):
    for url in (real_url, fake_url):
        assert send(url, CASES["health"], "", {}).status_code == 200
        assert httpx.get(url + "/metrics", timeout=60).status_code == 200


def test_the_fakes_metrics_are_the_real_ones(real_url: str, fake_url: str):
    def names(url: str) -> set[str]:
        text = httpx.get(url + "/metrics", timeout=60).text
        return set(re.findall(r"^(vllm:\w+)", text, re.MULTILINE))

    assert names(fake_url) <= names(real_url)


# What only the real server can prove


def request(
    seed: int, *, ids: list[int] | None = None, tokens: int = 12, k: int = 8, **sampling: Any
) -> TurnRequest:
    prompt_ids = np.array(SHORT if ids is None else ids, np.int32)
    return TurnRequest(MODEL, prompt_ids, tokens, seed, SamplingParams(num_logprobs=k, **sampling))


async def test_the_server_that_the_command_starts_has_all_that_the_run_needs(real, config):
    found = await probe(real, config)
    assert found.endpoint is Endpoint.PACKED
    assert check(found, config) == ((), ())
    assert found.load is not None
    assert found.load.kv_tokens
    assert found.block_size


SETTINGS = [
    pytest.param({}, id="plain"),
    pytest.param({"k": 0}, id="no top logprobs"),
    pytest.param({"k": 1}, id="one top logprob"),
    pytest.param({"temperature": 0.6}, id="temperature"),
    pytest.param({"stop": ("1", "3")}, id="stop strings"),
    pytest.param({"tokens": 1}, id="one token"),
    pytest.param({"ids": list(range(CONTEXT - 3))}, id="cut by the context"),
    pytest.param({"k": 8, "top_k": 20, "top_p": 0.9}, id="nucleus"),
    pytest.param({"k": 8, "top_k": 4, "temperature": 1.5}, id="top_k below K"),
    pytest.param({"k": 0, "top_k": 12, "min_p": 0.02, "temperature": 1.5}, id="min_p without K"),
]
TURN_ARRAYS = ("output_ids", "top_ids", "candidate_ids", "candidate_counts")
TURN_LOGPROBS = ("logprobs", "top_logprobs")


@pytest.mark.parametrize("settings", SETTINGS)
async def test_the_three_endpoints_give_the_same_turn(real, settings):
    for seed in range(4):
        await same_turn_of_all_three(real, request(seed, **settings))


async def same_turn_of_all_three(real: ServerClient, wanted: TurnRequest) -> Turn:
    truncated = is_truncated(wanted.sampling)
    source = CandidateSource.TOP if truncated else CandidateSource.NONE
    packed, *others = [await real.generate_once(wanted, endpoint, source) for endpoint in Endpoint]
    assert packed.output_ids.size
    assert (packed.candidate_ids is not None) is truncated
    for other in others:
        assert other.finish_reason == packed.finish_reason
        for name in TURN_ARRAYS:
            np.testing.assert_array_equal(in_order(other, name), in_order(packed, name), name)
        for name in TURN_LOGPROBS:
            one, two = getattr(other, name), getattr(packed, name)
            assert (one is None) is (two is None)
            if two is not None:
                np.testing.assert_allclose(one, two, atol=1e-5, err_msg=name)
    return packed


def in_order(turn: Turn, name: str) -> Any:
    """An array of a turn; candidates, whose order within a set means nothing, by id."""
    values = getattr(turn, name)
    if name != "candidate_ids" or values is None:
        return values
    assert turn.candidate_counts is not None
    owners = np.repeat(np.arange(turn.output_ids.size), turn.candidate_counts)
    return values[np.lexsort((values, owners))]


async def test_candidate_sets_hold_the_whole_mass_and_the_token(real):
    wanted = request(3, tokens=60, k=20, top_k=20, top_p=0.9, temperature=1.5)
    turn = await real.generate_once(wanted, Endpoint.PACKED, CandidateSource.TOP)
    np.testing.assert_allclose(np.exp(turn.top_logprobs).sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal((turn.top_ids != NO_TOKEN).sum(1), turn.candidate_counts)
    assert turn.candidate_counts.max() > 1
    sets = np.split(turn.candidate_ids, turn.candidate_counts.cumsum()[:-1])
    assert all(token in found for token, found in zip(turn.output_ids, sets, strict=True))


async def test_top_logprobs_are_the_best_and_contain_a_sampled_token_that_is_one_of_them(real):
    turn = await real.generate(request(5, tokens=40, k=8))
    assert (np.diff(turn.top_logprobs, axis=1) <= 1e-6).all()
    is_top = turn.top_ids == turn.output_ids[:, None]
    assert is_top.any()
    sampled = np.broadcast_to(turn.logprobs[:, None], is_top.shape)
    np.testing.assert_allclose(turn.top_logprobs[is_top], sampled[is_top], atol=1e-5)
    outside = turn.logprobs[~is_top.any(axis=1)]
    assert (outside <= turn.top_logprobs[~is_top.any(axis=1), -1] + 1e-6).all()


async def test_turn_logprobs_are_the_prompt_logprobs_of_the_same_tokens(real):
    turn = await real.generate(request(6, tokens=20))
    sequence = np.concatenate([np.array(SHORT, np.int32), turn.output_ids])
    scored = await real.prompt_logprobs(MODEL, sequence)
    assert scored[0] == 0
    np.testing.assert_allclose(scored[len(SHORT) :], turn.logprobs, atol=1e-4)


def long_prompts(count: int) -> list[TurnRequest]:
    values = np.random.default_rng(1)
    sizes = values.integers(CONTEXT // 2, CONTEXT - 20, count)
    return [
        request(int(seed), ids=values.integers(5, 60, size).tolist(), tokens=16, k=4)
        for seed, size in enumerate(sizes)
    ]


async def test_many_seeded_long_prompts_leave_the_engine_alive_before_and_after_a_pause(real):
    requests = long_prompts(96)

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(real.generate(request) for request in requests))

    before = await all_at_once()
    under_way = asyncio.ensure_future(all_at_once())
    await asyncio.sleep(0.3)
    await real.pause()
    await asyncio.sleep(0.2)
    await real.resume()
    after = [*await under_way, *await all_at_once()]
    assert await real.health()
    assert len(before) + len(after) == 3 * len(requests)
    for first, second in zip(before, after[len(requests) :], strict=True):
        np.testing.assert_array_equal(first.output_ids, second.output_ids)


async def test_clients_that_go_away_end_their_requests_in_the_engine(real):
    requests = long_prompts(256)  # many prefills: most still wait when the first has begun
    whole = await asyncio.gather(*(real.generate(one) for one in requests))
    num_tokens = sum(turn.output_ids.size for turn in whole)

    async def made_for_nobody() -> int:
        await real.reset_prefix_cache()
        before = (await real.load()).generation_tokens
        tasks = [asyncio.ensure_future(real.generate(one)) for one in requests]
        await until(real, lambda load: load.running > 0 or load.generation_tokens > before)
        for task in tasks:
            task.cancel()
        await until(real, lambda load: load.running == load.waiting == 0)
        return (await real.load()).generation_tokens - before

    # All of them each time, were they to go on. On a busy machine all may be done before we look.
    made = [await made_for_nobody()]
    while made[-1] >= 0.9 * num_tokens and len(made) < TRIES:
        made.append(await made_for_nobody())
    assert made[-1] < 0.9 * num_tokens, made
    assert await real.health()


REFUSED = {
    "unknown model": {"model": "policy-v000099"},
    "prompt too long": {"ids": LONG},
    "no tokens": {"max_tokens": 0},
    "too many logprobs": {"logprobs": 30},
    "not a token": {"ids": [10, 99_999]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_packed_endpoint_refuses_as_the_stock_ones_do(case, real_url):
    errors = {how: send(real_url, call, "") for how, call in turn_calls(**REFUSED[case]).items()}
    packed = errors.pop("packed")
    assert packed.status_code in {answer.status_code for answer in errors.values()}
    assert packed.status_code // 100 == 4
    stock = [decoded(answer)["error"] for answer in errors.values()]
    ours = decoded(packed)["error"]
    assert all(ours.keys() >= {"message", "type", "param", "code"} for _ in stock)
    assert (ours["code"], ours["type"]) in [(error["code"], error["type"]) for error in stock]


async def test_the_packed_endpoint_and_generate_report_the_same_weight_versions(real, tmp_path):
    shutil.copy(Path(MODEL) / "model.safetensors", tmp_path)
    write_manifest(tmp_path, version=7)
    await real.pause()
    await real.start_weight_update()
    await real.update_weights({"path": str(tmp_path), "version": 7})
    await real.finish_weight_update(7)
    await real.resume()
    wanted = request(4, tokens=8)
    turns = [await real.generate_once(wanted, endpoint) for endpoint in Endpoint]
    spans = (VersionSpan(7, 0, turns[0].output_ids.size),)
    assert [turn.version_spans for turn in turns] == [spans, spans, ()]


async def until(client: ServerClient, holds: Callable[[Any], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds(await client.load()):  # noqa: ASYNC110  (a server notifies nobody)
            await asyncio.sleep(0.02)


async def test_an_adapter_is_another_policy_under_its_own_name(real, adapter):
    tokens = np.array([10, 11, 12, 13, 14], np.int32)
    base = await real.prompt_logprobs(MODEL, tokens)
    await real.load_adapter("policy-v000007", adapter)
    await real.load_adapter("policy-v000007", adapter)
    try:
        adapted = await real.prompt_logprobs("policy-v000007", tokens)
        assert np.abs(adapted - base).max() > 1e-3
        for sampling in ({}, {"top_k": 10, "top_p": 0.9}):
            ours = SamplingParams(num_logprobs=4, **sampling)
            named = TurnRequest("policy-v000007", tokens, 8, 1, ours)
            turn = await same_turn_of_all_three(real, named)
            of_base = await real.generate(msgspec.structs.replace(named, policy=MODEL))
            assert not np.array_equal(turn.logprobs, of_base.logprobs)
    finally:
        await real.unload_adapter("policy-v000007")
    with pytest.raises(UnknownModelError):
        await real.generate(TurnRequest("policy-v000007", tokens, 8, 1, SamplingParams()))
