"""The way from trained weights to served ones: a snapshot, handed to the publisher.

    model  --full_tensors | adapter_tensors, probe-->  Snapshot  --Publisher (rank 0)-->  servers

Taking the snapshot gathers shards, so every rank takes part; from there on training goes on while
rank 0's publisher writes, loads and attests.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int32
from peft import PeftModel

from asyncgrpo.config import Config, known
from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.server.client import configured_client
from asyncgrpo.sync.adapter import AdapterBackend
from asyncgrpo.sync.attest import NUM_PROBE_TOKENS, Attestor, probe_tokens
from asyncgrpo.sync.backend import Server, SyncBackend
from asyncgrpo.sync.base import Probe, Publisher, PublishReport, Snapshot
from asyncgrpo.sync.folder import FolderBackend
from asyncgrpo.sync.run_label import run_label
from asyncgrpo.sync.tensors import adapter_config, adapter_tensors, full_tensors
from asyncgrpo.training.model.architecture import unwrap_peft
from asyncgrpo.training.model.model import Policy


class Publishing(Protocol):
    """A publisher as the trainer uses it; `sync.base.Publisher` is one."""

    def publish(self, snapshot: Snapshot) -> int: ...
    def check(self) -> None: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...
    def drain_measurements(self) -> Aggregates: ...


OnPublished = Callable[[PublishReport], None]
MakePublisher = Callable[[Config, Policy, OnPublished, int], Publishing]


def make_publisher(
    config: Config, policy: Policy, on_published: OnPublished, first_version: int
) -> Publisher:
    """The publisher that the configuration asks for, to the servers it names."""
    attestor = None
    if config.sync.attest:
        attestor = Attestor(known(config.sync.attest_tolerance))
    return Publisher(
        _backend(config, policy),
        lambda: _connect(config),
        on_published=on_published,
        attestor=attestor,
        first_version=first_version,
    )


def _backend(config: Config, policy: Policy) -> SyncBackend:
    served = Path(known(config.sync.path))
    keep = known(config.sync.keep_versions)
    if known(config.sync.backend) == "adapter":
        assert isinstance(policy.model, PeftModel), "adapter sync without an adapter"
        return AdapterBackend(
            served,
            adapter_config(policy.model),
            label=run_label(served, known(config.run.name)),
            keep_versions=keep,
        )
    return FolderBackend(served, config.model.name_or_path, keep_versions=keep)


def _connect(config: Config) -> Sequence[Server]:
    return [configured_client(config, url) for url in known(config.server.urls)]


def snapshot(config: Config, policy: Policy, probe_ids: Int32[np.ndarray, "n"] | None) -> Snapshot:
    """The weights as they are now.

    Collective: every rank calls it. Rank 0's snapshot holds the tensors.
    """
    model = policy.model
    if known(config.sync.backend) == "adapter" and isinstance(model, PeftModel):
        tensors = adapter_tensors(model)
    else:
        dtype = getattr(torch, str(known(config.server.dtype)), None)
        tensors = full_tensors(model, dtype=dtype)
    return Snapshot(tensors, None if probe_ids is None else _probe(policy, probe_ids))


def _probe(policy: Policy, token_ids: Int32[np.ndarray, "n"]) -> Probe:
    """The policy's own logprobs of the probe, computed as it computes those of a row."""
    scorer = policy.scorer
    scorer.eval()  # no dropout
    logprobs = scorer.sequence_logprobs(token_ids.tolist()).float().cpu().numpy()
    scorer.train()
    return Probe(token_ids, np.concatenate([np.zeros(1, np.float32), logprobs]))


def probe_ids(config: Config, policy: Policy, vocab_size: int) -> Int32[np.ndarray, "n"] | None:
    """The tokens that a run is attested with; None where sync.attest is off."""
    if not config.sync.attest:
        return None
    length = min(NUM_PROBE_TOKENS, known(config.server.max_model_len) - 1)
    avoid = _tokens_with_a_role(policy)
    return probe_tokens(vocab_size, seed=config.rollout.seed, length=length, avoid=avoid)


def _tokens_with_a_role(policy: Policy) -> list[int]:
    """Tokens that the model's configuration names: a server may look for an image behind one."""
    named = unwrap_peft(policy.model).config.to_dict()
    return [
        token
        for key, token in named.items()
        if key.endswith(("_token_id", "_token_index")) and isinstance(token, int)
    ]
