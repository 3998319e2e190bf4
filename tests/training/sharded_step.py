"""One step of a sharded model: run under torchrun by the tests of hybrids and of experts.

    OUT MODEL COMPUTE  ->  OUT.safetensors: gradients, and the loss; OUT.json: names as published

Each rank forwards its own rows of the two.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from asyncgrpo.packing.row import build_row
from asyncgrpo.process.ending import run_to_the_end
from asyncgrpo.sync.tensors import full_tensors
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.model.model import load_policy
from asyncgrpo.training.model.row_tensors import RowTensors
from asyncgrpo.training.parallel import (
    Ranks,
    join_ranks,
    leave_ranks,
    local_loss_scale,
    shard,
    sum_over_ranks,
)
from tests.training.fixtures import resolved
from tests.training.scripted_worker import make_group


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(out: Path, model: Path, compute: torch.dtype | None, ranks: Ranks) -> None:
    config = resolved(model, out.parent, model={"gradient_checkpointing": True})
    policy = load_policy(config, None, ranks.device)
    shard(policy.scorer, policy.layers, ranks, compute=compute, replicate=False)
    rows = [build_row(make_group(0, position).samples) for position in range(2)]
    denominator = float(sum(row.term_target_T.size for row in rows))
    settings = LossSettings.from_config(config.loss, policy.scorer.router_aux_loss_coef)
    total = torch.zeros(())
    for row in rows[ranks.rank :: ranks.world]:
        tensors = RowTensors.from_row(row, "cpu")
        scores = policy.scorer(tensors)
        loss, _ = policy_loss(scores, tensors, settings, denominator)
        (loss * local_loss_scale(policy.scorer, ranks)).backward()
        total += loss.detach()
    found = {
        name: whole(parameter.grad).clone()
        for name, parameter in policy.model.named_parameters()
        if parameter.grad is not None
    }
    found["loss"] = sum_over_ranks(total)
    published = full_tensors(policy.model)
    if ranks.is_first:
        save_file(found, out.with_suffix(".safetensors"))
        shapes = {name: list(tensor.shape) for name, tensor in published.items()}
        out.with_suffix(".json").write_text(json.dumps(shapes))


def main() -> None:
    joined = join_ranks(use_gpu=False, timeout_s=200)
    run(Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3], None), joined)
    leave_ranks()


if __name__ == "__main__":
    run_to_the_end(main)
