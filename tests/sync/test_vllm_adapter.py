"""Adapter sync against the real vLLM on CPU: versions side by side, nothing paused."""

import asyncio
import threading

import numpy as np
import pytest

from asyncgrpo.errors import SyncError
from asyncgrpo.records import FinishReason, SamplingParams, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient
from asyncgrpo.sync.adapter import AdapterBackend
from asyncgrpo.sync.attest import Attestor, Probe, probe_tokens
from asyncgrpo.sync.backend import next_version
from asyncgrpo.sync.base import Publisher, PublishReport, Snapshot
from asyncgrpo.sync.tensors import adapter_config, adapter_tensors

from .models import VOCAB, logprobs_of, stir, tiny_lora, tiny_model
from .vllm_server import running_vllm, save_with_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

KEEP = 2
LORA = (
    *("--enable-lora", "--max-lora-rank", "8", "--max-loras", str(KEEP + 1)),
    # Else vLLM wraps the LM head too, and on CPU its LoRA kernel takes one row per request: scoring
    # a prompt while others generate kills the engine.
    *("--lora-target-modules", "q_proj", "v_proj", "down_proj"),
)
TOKENS = probe_tokens(VOCAB, seed=0)
NUM_TOKENS = 450  # of each request in flight: some seconds of generation


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The served folder of all tests: no name may have two sets of weights."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter-sync")
    checkpoint = save_with_tokenizer(tiny_model(), folder / "model")
    with running_vllm(checkpoint, folder / "vllm.log", *LORA) as url:
        yield url


def trained_adapter():
    return tiny_lora(tiny_model()).eval()


def snapshot_of(model) -> Snapshot:
    logprobs = logprobs_of(model, TOKENS.tolist()).numpy()
    return Snapshot(adapter_tensors(model), Probe(TOKENS, logprobs))


def publisher_for(
    url, served, model, published: list[PublishReport], client=ServerClient
) -> Publisher:
    return Publisher(
        AdapterBackend(served, adapter_config(model), label="demo-4f1c09", keep_versions=KEEP),
        lambda: [client(url)],
        on_published=published.append,
        attestor=Attestor(1e-4),
        first_version=next_version(served),
    )


async def names_and_logprobs(url: str, names) -> tuple[set[str], dict[str, np.ndarray]]:
    async with ServerClient(url) as client:
        served = {model.name for model in await client.models()}
        return served, {name: await client.prompt_logprobs(name, TOKENS) for name in names}


def test_versions_are_served_side_by_side_exactly_and_the_oldest_goes(url, served):
    model, published, expected = trained_adapter(), [], {}
    publisher = publisher_for(url, served, model, published)
    try:
        for step in range(4):
            stir(model, 0.05, seed=step)
            publisher.publish(snapshot_of(model))
            publisher.wait(120)
            expected[published[-1].policy] = logprobs_of(model, TOKENS.tolist()).numpy()
        newest = [p.policy for p in published][-KEEP:]
        names, logprobs = asyncio.run(names_and_logprobs(url, newest))
    finally:
        publisher.close()
    assert names == {"tiny", *newest}
    assert asyncio.run(names_and_logprobs(url, []))[0] == {"tiny"}  # all are unloaded at the end
    assert [path.name[-6:] for path in sorted(served.iterdir())] == [n[-6:] for n in newest]
    for name in newest:
        assert np.abs(logprobs[name] - expected[name]).max() < 1e-4
    assert max(p.attest_logp_diff for p in published) < 1e-5
    assert all(p.pause_s == 0 for p in published)


class ServesTheBase(ServerClient):
    """A server that says yes to a load, and answers from its base model."""

    async def prompt_logprobs(self, policy, token_ids):
        return await super().prompt_logprobs("tiny", token_ids)


def test_base_weights_under_an_adapters_name_are_caught(url, served):
    model, published = trained_adapter(), []
    publisher = publisher_for(url, served, model, published, ServesTheBase)
    publisher.publish(snapshot_of(model))
    with pytest.raises(SyncError, match=rf"{url} does not serve.*base weights"):
        publisher.wait(120)
    publisher.close()
    assert published == []


def test_a_rank_above_the_servers_is_refused_with_its_reason(url, served):
    model, published = tiny_lora(tiny_model(), r=16).eval(), []
    publisher = publisher_for(url, served, model, published)
    publisher.publish(snapshot_of(model))
    with pytest.raises(SyncError, match=r"(?i)rank 16 is greater than max_lora_rank 8"):
        publisher.wait(120)
    publisher.close()


def test_requests_in_flight_keep_their_version_and_none_is_lost(url, served):
    model, published, turns = trained_adapter(), [], []
    publisher = publisher_for(url, served, model, published)
    publisher.publish(snapshot_of(model))
    publisher.wait(120)
    started_under = published[0].policy

    async def generate_all():
        sampling = SamplingParams(num_logprobs=0)
        async with ServerClient(url) as client:
            client.endpoint = Endpoint.GENERATE
            requests = [
                TurnRequest(
                    started_under, np.array([5, 6, 7 + i], np.int32), NUM_TOKENS, i + 1, sampling
                )
                for i in range(32)
            ]
            turns.extend(await asyncio.gather(*(client.generate(r) for r in requests)))

    generating = threading.Thread(target=lambda: asyncio.run(generate_all()))
    generating.start()
    step = 0
    while generating.is_alive() and step < 30:
        stir(model, 0.02, seed=step)
        publisher.publish(snapshot_of(model))
        publisher.wait(120)
        step += 1
    generating.join(240)
    assert step > KEEP, "the requests ended before their version was due to be unloaded"
    publisher.publish(snapshot_of(model))
    publisher.wait(120)
    publisher.close()

    assert len(turns) == 32
    assert all(turn.finish_reason is FinishReason.LENGTH for turn in turns)
    assert all(turn.output_ids.size == NUM_TOKENS for turn in turns)
    model_then = trained_adapter()
    for turn, first in zip(turns[:4], range(7, 11), strict=True):
        ids = [5, 6, first, *turn.output_ids.tolist()]
        expected = logprobs_of(model_then, ids).numpy()[3:]
        assert np.abs(turn.logprobs - expected).max() < 1e-3  # one version from start to end
    assert not (served / started_under).exists()  # gone once nothing used it
