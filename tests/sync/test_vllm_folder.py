"""Folder sync against the real vLLM on CPU, with tied and with untied embeddings."""

import asyncio
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgrpo.errors import SyncError
from asyncgrpo.records import FinishReason, SamplingParams, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.weight_folder import write_manifest
from asyncgrpo.sync.attest import Attestor, Probe, probe_tokens
from asyncgrpo.sync.base import Publisher, PublishReport, Snapshot
from asyncgrpo.sync.folder import FolderBackend
from asyncgrpo.sync.tensors import full_tensors

from .models import VOCAB, logprobs_of, stir, tiny_lora, tiny_model
from .vllm_server import running_vllm, save_with_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

FOLDER = ("--weight-transfer-config", '{"backend": "folder"}')
TOKENS = probe_tokens(VOCAB, seed=0)
NUM_TOKENS = 450  # of each request in flight: some seconds of generation


class Setup:
    """A server, the model it started from, and what a trainer would hold."""

    def __init__(self, url: str, checkpoint: Path, *, tied: bool) -> None:
        self.url = url
        self.checkpoint = checkpoint
        self.tied = tied

    def model(self):
        return tiny_model(tied=self.tied)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def setup(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder-sync")
    checkpoint = save_with_tokenizer(tiny_model(tied=request.param), folder / "model")
    with running_vllm(checkpoint, folder / "vllm.log", *FOLDER) as url:
        yield Setup(url, checkpoint, tied=request.param)


def snapshot_of(model) -> Snapshot:
    logprobs = logprobs_of(model, TOKENS.tolist()).numpy()
    return Snapshot(full_tensors(model), Probe(TOKENS, logprobs))


def publisher_for(
    setup: Setup, served: Path, published: list[PublishReport], **kwargs
) -> Publisher:
    return Publisher(
        kwargs.pop("backend", None) or FolderBackend(served, "tiny", keep_versions=2),
        lambda: [ServerClient(setup.url)],
        on_published=published.append,
        attestor=Attestor(1e-4),
        **kwargs,
    )


def served_logprobs(url: str) -> np.ndarray:
    async def ask():
        async with ServerClient(url) as client:
            return await client.prompt_logprobs("tiny", TOKENS)

    return asyncio.run(ask())


def test_several_reloads_of_changed_weights_are_served_exactly(setup, tmp_path):
    model, published = setup.model(), []
    publisher = publisher_for(setup, tmp_path, published)
    try:
        for step in range(4):
            stir(model, 0.05, seed=step)
            assert publisher.publish(snapshot_of(model)) == step
            publisher.wait(120)
            expected = logprobs_of(model, TOKENS.tolist()).numpy()
            assert np.abs(served_logprobs(setup.url) - expected).max() < 1e-4
    finally:
        publisher.close()
    assert [p.version for p in published] == [0, 1, 2, 3]
    assert max(p.attest_logp_diff for p in published) < 1e-4
    assert all(p.policy == "tiny" and 0 < p.pause_s < p.publish_s for p in published)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy-v000002", "policy-v000003"]


def test_a_merged_adapter_is_served_as_trained(setup, tmp_path):
    model, published = tiny_lora(setup.model()).eval(), []
    publisher = publisher_for(setup, tmp_path, published)
    try:
        # Blocks without an adapter are not sent: they must be those of the checkpoint.
        publisher.publish(snapshot_of(setup.model()))
        publisher.wait(120)
        for step in range(2):
            stir(model, 0.05, seed=step)
            publisher.publish(snapshot_of(model))
            publisher.wait(120)
    finally:
        publisher.close()
    assert published[-1].attest_logp_diff < 1e-4


class SkippingClient(ServerClient):
    """A server that says yes to an update and loads nothing."""

    async def update_weights(self, info):
        pass


def test_a_load_that_was_skipped_is_caught(setup, tmp_path):
    model, published = setup.model(), []
    publisher = Publisher(
        FolderBackend(tmp_path, "tiny", keep_versions=2),
        lambda: [SkippingClient(setup.url)],
        on_published=published.append,
        attestor=Attestor(1e-4),
        first_version=7,
    )
    stir(model, 0.3, seed=11)
    publisher.publish(snapshot_of(model))
    with pytest.raises(SyncError, match=rf"{setup.url}.*version 7.*ignored the load"):
        publisher.wait(120)
    publisher.close()
    assert published == []


def torn(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def changed(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def half_of_a_fused_layer(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_manifest(folder, version=0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(torn, r"model\.safetensors.*torn", id="torn"),
        pytest.param(changed, r"model\.safetensors.*checksum", id="changed"),
        pytest.param(
            lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json", id="no manifest"
        ),
        pytest.param(
            lambda folder: write_manifest(folder, version=3), "holds version 3", id="stale"
        ),
        pytest.param(
            half_of_a_fused_layer, r"layers\.0\.self_attn\.qkv_proj", id="half a fused layer"
        ),
    ],
)
def test_a_damaged_folder_is_refused_by_name_and_the_server_lives_on(
    setup, tmp_path, damage, message
):
    model = setup.model()
    tensors = full_tensors(model)

    async def scenario():
        backend = FolderBackend(tmp_path, "tiny", keep_versions=2)
        async with ServerClient(setup.url) as client:
            await backend.publish(0, tensors, [client])
            damage(tmp_path / "policy-v000000")
            with pytest.raises(SyncError, match=message):
                await backend.reload(0, client)
            return await client.prompt_logprobs("tiny", TOKENS)

    served = asyncio.run(asyncio.wait_for(scenario(), 120))  # it answers: it is not paused
    if damage is not half_of_a_fused_layer:
        expected = logprobs_of(model, TOKENS.tolist()).numpy()
        assert np.abs(served - expected).max() < 1e-4  # and the old weights stand


def test_requests_in_flight_survive_syncs_and_know_their_versions(setup, tmp_path):
    model, published = setup.model(), []
    publisher = publisher_for(setup, tmp_path, published, first_version=20)
    publisher.publish(snapshot_of(model))
    publisher.wait(120)
    turns = []

    async def generate_all():
        sampling = SamplingParams(num_logprobs=0)
        async with ServerClient(setup.url) as client:
            client.endpoint = Endpoint.GENERATE
            requests = [
                TurnRequest(
                    "tiny", np.array([5, 6, 7 + i], np.int32), NUM_TOKENS, 1000 + i, sampling
                )
                for i in range(32)
            ]
            turns.extend(await asyncio.gather(*(client.generate(r) for r in requests)))

    generating = threading.Thread(target=lambda: asyncio.run(generate_all()))
    generating.start()
    step = 0
    while generating.is_alive() and step < 50:
        stir(model, 0.02, seed=step)
        publisher.publish(snapshot_of(model))
        publisher.wait(120)
        step += 1
    generating.join(240)
    publisher.close()
    assert len(turns) == 32
    assert all(turn.finish_reason is FinishReason.LENGTH for turn in turns)
    assert all(turn.output_ids.size == NUM_TOKENS for turn in turns)
    for turn in turns:
        spans = turn.version_spans
        assert spans[0].start == 0
        assert spans[-1].end == turn.output_ids.size
        assert [s.end for s in spans[:-1]] == [s.start for s in spans[1:]]
        assert [s.version for s in spans] == sorted(s.version for s in spans)
    assert any(len(turn.version_spans) > 1 for turn in turns)
    assert [p.version for p in published] == list(range(20, 20 + step + 1))


def test_the_checkpoint_on_disk_is_untouched(setup):
    started_from = load_file(setup.checkpoint / "model.safetensors")
    expected = full_tensors(setup.model())
    assert all(torch.equal(started_from[name], expected[name]) for name in expected)
    assert not list(setup.checkpoint.glob("manifest.json"))


def test_a_missing_folder_is_told_with_what_to_check(setup, tmp_path):
    async def scenario():
        backend = FolderBackend(tmp_path, "tiny", keep_versions=2)
        async with ServerClient(setup.url) as client:
            await backend.publish(0, full_tensors(setup.model()), [client])
            shutil.rmtree(tmp_path / "policy-v000000")
            with pytest.raises(SyncError, match=r"sync\.path and the mount"):
                await backend.reload(0, client)

    asyncio.run(scenario())
