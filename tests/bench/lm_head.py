"""B3: the tiled LM head against full logits, forward and backward: peak extra memory and CPU time.

    T predicting positions of N, hidden size H, vocabulary V, K top tokens, entropy; float32

    ours   score_terms over the row
    full   logits [T, V] -> log_softmax -> gather; the N - T positions that predict nothing are
           left out of the reference too, which halves what it holds

Each measurement is a process of its own, the two in turn. Peak extra memory is the highest
resident size during forward and backward above the one just before, the gradients included.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from asyncgrpo.training.head.lm_head import score_terms
from asyncgrpo.training.head.logit_shape import Head
from tests.bench.figure import Figure

V, N, T, K = 151_936, 4_096, 2_048, 8
H = 256  # small, so that what is not a matrix product weighs more than in a real model
REPEATS = 3
MEMORY_BAR = 1 / 8


class Measured(msgspec.Struct, frozen=True):
    """One forward and backward."""

    cpu_s: float
    extra_mb: float


class _Inputs(NamedTuple):
    hidden_NH: Tensor
    weight_VH: Tensor
    position_T: Tensor
    target_T: Tensor
    top_ids_TK: Tensor
    gradient_TC: Tensor


def measure() -> list[Figure]:
    """Memory against its bar; CPU seconds of both, in turn."""
    runs: dict[str, list[Measured]] = {"ours": [], "full": []}
    for _ in range(REPEATS):
        for variant, measured in runs.items():
            measured.append(_in_a_process_of_its_own(variant))
    memory = {name: statistics.median(m.extra_mb for m in each) for name, each in runs.items()}
    seconds = {name: statistics.median(m.cpu_s for m in each) for name, each in runs.items()}
    what = f"V={V} N={N} T={T} K={K} H={H}"
    return [
        Figure("B3", f"{what}: extra memory, of full logits'", memory["ours"] / memory["full"],
               "", MEMORY_BAR, at_least=False),
        Figure("B3", "extra memory", memory["ours"], "MB"),
        Figure("B3", "extra memory, full logits", memory["full"], "MB"),
        Figure("B3", "forward + backward", seconds["ours"], "s"),
        Figure("B3", "forward + backward, full logits", seconds["full"], "s"),
    ]  # fmt: skip


def _in_a_process_of_its_own(variant: str) -> Measured:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "tests.bench.lm_head", variant]
    output = subprocess.run(argv, check=True, capture_output=True, env=environment).stdout
    return msgspec.json.decode(output.splitlines()[-1], type=Measured)


def _draw() -> _Inputs:
    draw = torch.Generator().manual_seed(0)
    return _Inputs(
        hidden_NH=torch.randn(N, H, generator=draw).requires_grad_(),
        weight_VH=torch.randn(V, H, generator=draw).mul_(H**-0.5).requires_grad_(),
        position_T=torch.arange(0, N, N // T),
        target_T=torch.randint(0, V, (T,), generator=draw),
        top_ids_TK=torch.randint(0, V, (T, K), generator=draw),
        gradient_TC=torch.randn(T, 1 + K, generator=draw),
    )


def _ours(given: _Inputs) -> Tensor:
    scores = score_terms(
        given.hidden_NH,
        Head(given.weight_VH),
        given.position_T,
        given.target_T,
        top_ids_TK=given.top_ids_TK,
    )
    return torch.cat([scores.logprob_T[:, None], scores.top_logprob_TK], dim=1)


def _full(given: _Inputs) -> Tensor:
    logprobs_TV = (given.hidden_NH[given.position_T] @ given.weight_VH.T).log_softmax(-1)
    with torch.no_grad():
        _entropy = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, torch.cat([given.target_T[:, None], given.top_ids_TK], dim=1))


def _memory_mb(key: str) -> float:
    """VmRSS (now) or VmHWM (highest since the last reset) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def main(variant: str) -> None:
    """Measure one variant in this process; print it as JSON."""
    torch.set_num_threads(1)
    given = _draw()
    before = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size starts anew
    started = time.process_time()
    logprobs_TC = {"ours": _ours, "full": _full}[variant](given)
    (logprobs_TC * given.gradient_TC).sum().backward()
    seconds = time.process_time() - started
    print(json.dumps({"cpu_s": seconds, "extra_mb": _memory_mb("VmHWM") - before}))


if __name__ == "__main__":
    main(sys.argv[1])
