"""The time that sharing saves on this device, and the share of it a packed row uses.

    speed-up  = seconds of the samples packed without sharing / seconds of the row, the same work
    MFU       = FLOPs of the row, forward and backward / seconds x the device's peak

Medians of interleaved runs: neither side gets the quiet minutes.
"""

import statistics
import time
from collections.abc import Iterator

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from asyncgrpo.records import Row
from asyncgrpo.training.attention.attention_backends import Backends
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.model.flops import count_flops
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.model import Policy
from asyncgrpo.training.model.peak_rates import peak_rate
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.gpu.line import Line
from tests.gpu.made_rows import Group
from tests.training.fixtures import loss_settings

RUNS = 5
LEAST_SPEED_UP = 2.8  # published at R = 3.4 on an H100


def check(
    config: Qwen3Config,
    group: Group,
    backends: Backends,
    dtype: torch.dtype,
    device: torch.device,
    *,
    judged: bool,
) -> Iterator[Line]:
    """Time forward, loss and backward of a group with and without its prompt shared."""
    policy = _policy(config, backends, dtype, device)
    packed, plain = group.row(shared=True), group.row(shared=False)
    seconds = _medians(policy, (packed, plain), device)
    yield Line("packing ratio R", plain.input_ids_N.size / packed.input_ids_N.size)
    yield Line("row: forwarded tokens", packed.input_ids_N.size)
    yield Line("row: forward, loss, backward", 1e3 * seconds[0], unit="ms")
    yield Line("without sharing", 1e3 * seconds[1], unit="ms")
    bar = LEAST_SPEED_UP if judged else None
    yield Line(f"speed-up at R = {group.ratio:.1f}", seconds[1] / seconds[0], bar, at_least=True)

    rate = count_flops(policy).of_row(packed) / seconds[0]
    yield Line("row: arithmetic", rate / 1e12, unit="TFLOP/s")
    peak = peak_rate(device, dtype)
    if peak is None:
        print("no MFU: the peak rate of this device is not known")
    else:
        yield Line("row: MFU", rate / peak)


def _policy(
    config: Qwen3Config, backends: Backends, dtype: torch.dtype, device: torch.device
) -> Policy:
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.train()
    return Policy(PolicyModel(model, backends), model, tuple(model.get_decoder().layers))


def _medians(policy: Policy, rows: tuple[Row, ...], device: torch.device) -> list[float]:
    tensors = [RowTensors.from_row(row, device) for row in rows]
    seconds: list[list[float]] = [[] for _ in rows]
    for run in range(RUNS + 1):
        for row, measured in zip(tensors, seconds, strict=True):
            took = _timed_step(policy, row, device)
            if run > 0:  # the first plans attention and warms up
                measured.append(took)
    return [statistics.median(measured) for measured in seconds]


def _timed_step(policy: Policy, row: RowTensors, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    loss, _ = policy_loss(policy.scorer(row), row, loss_settings(), float(row.num_trained))
    loss.backward()
    _wait(device)
    took = time.perf_counter() - started
    policy.scorer.zero_grad(set_to_none=True)
    return took


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
