"""Shards of two ranks, gathered, are the unsharded tensors: run by test_tensors.py."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from asyncgrpo.sync.tensors import adapter_tensors, full_tensors
from tests.sync.models import tiny_lora, tiny_model

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
CASES: list[tuple[str, Any, Any]] = [
    ("full", lambda: tiny_model(tied=True), full_tensors),
    ("merged", lambda: tiny_lora(tiny_model(tied=False)), full_tensors),
    ("adapter", lambda: tiny_lora(tiny_model()), adapter_tensors),
]
for name, build, gather in CASES:
    expected = gather(build())
    model = build()
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in base.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    got = gather(model)
    if dist.get_rank():
        assert got == {}, name
        continue
    assert sorted(got) == sorted(expected), (name, sorted(set(got) ^ set(expected)))
    for key in expected:
        assert torch.equal(got[key], expected[key]), (name, key)
    print("same", name, len(got), file=sys.stderr)
dist.destroy_process_group()
