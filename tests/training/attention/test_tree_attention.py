"""Each back end against one dense mask, what falls back to sdpa, and what is refused."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from asyncgrpo.errors import ConfigError
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from asyncgrpo.training.attention import attention_varlen
from asyncgrpo.training.attention.attention_backends import (
    SDPA,
    AttentionBackend,
    Backends,
    choose_backends,
)
from asyncgrpo.training.attention.attention_sdpa import SdpaRow
from asyncgrpo.training.attention.attention_varlen import KernelLimits, VarlenBackend
from asyncgrpo.training.attention.gather_states import gather_states
from asyncgrpo.training.attention.tree_attention import RowAttention, tree_attention
from tests.packing.made_samples import path_positions, samples
from tests.training.fake_varlen import FAKE_VARLEN, reference_attend
from tests.training.packed_samples import make_sample, tangled_samples

HEADS, KEY_HEADS, SIZE = 4, 2, 8
BACKENDS = {"sdpa": SDPA, "varlen": FAKE_VARLEN}
CPU = torch.device("cpu")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def states(row: Row, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    n = row.input_ids_N.size
    return [
        torch.randn(1, heads, n, SIZE, dtype=torch.float64).to(dtype).requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def dense(row: Row, q: Tensor, k: Tensor, v: Tensor, window: int | None, softcap: float | None):
    """Textbook attention under an [N, N] mask."""
    mask = torch.zeros(row.input_ids_N.size, row.input_ids_N.size, dtype=torch.bool)
    for position in range(row.input_ids_N.size):
        path = path_positions(row, position)
        mask[position, path if window is None else path[-window:]] = True
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * 0.3
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def tree(row: Row, q: Tensor, k: Tensor, v: Tensor, backend: AttentionBackend = SDPA, **options):
    out, weights = tree_attention(
        nn.Identity(),
        q,
        k,
        v,
        None,
        row_attention=RowAttention(row, CPU),
        attention_backends=options.pop("attention_backends", Backends(backend)),
        scaling=0.3,
        **options,
    )
    assert weights is None
    return out


def assert_equals_dense(
    backend: AttentionBackend,
    row: Row,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
):
    q, k, v = states(row, dtype)
    out = tree(row, q, k, v, backend, sliding_window=window, softcap=softcap)
    expected = dense(row, q, k, v, window, softcap)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.manual_seed(1)
    grad = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, (q, k, v), grad),
        torch.autograd.grad(expected, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "soft cap"])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_the_tangled_row_equals_a_dense_mask(backend, window, softcap, dtype):
    assert_equals_dense(backend, build_row(tangled_samples()), window, softcap, dtype)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@given(given_samples=samples(), window=st.none() | st.integers(1, 6))
def test_every_row_equals_a_dense_mask(backend, given_samples, window):
    assert_equals_dense(backend, build_row(given_samples), window, None, torch.float64)


def test_a_token_that_many_branches_read_has_a_gradient_summed_in_float32():
    many = torch.zeros(1000, dtype=torch.int64)
    states = torch.zeros(2, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    gather_states(states, many).backward(torch.ones(1000, 1, 1, dtype=torch.bfloat16))
    assert states.grad.flatten().tolist() == [1000, 0]  # added in bfloat16 it would stay at 256


def test_no_tensor_of_n_by_n_is_made():
    row = build_row(tangled_samples())
    n = row.input_ids_N.size
    plan = RowAttention(row, CPU).plan(None, torch.float32)
    assert isinstance(plan, SdpaRow)
    assert all(call.mask_B1QP is None or call.mask_B1QP[0].numel() < n * n for call in plan.calls)


def test_a_window_wider_than_the_row_shares_the_plan_of_none():
    attention = RowAttention(build_row(tangled_samples()), CPU)
    assert attention.plan(10_000, torch.float32) is attention.plan(None, torch.float32)


def test_attention_sinks_are_refused_by_name():
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    with pytest.raises(ConfigError, match="Identity uses attention sinks"):
        tree(row, q, k, v, s_aux=torch.zeros(HEADS))


def test_attention_dropout_is_refused_with_the_key_to_change():
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    with pytest.raises(ConfigError, match=r"init_kwargs\.attention_dropout=0"):
        tree(row, q, k, v, dropout=0.1)


class Recorded:
    """Stands in for a kernel's Python function: keeps how it is called, computes the reference."""

    def __init__(self, *, adds_lse: bool = False):
        self.adds_lse = adds_lse
        self.calls = []

    def __call__(self, q, k, v, *positional, **named):
        self.calls.append((positional, named))
        ends = positional or tuple(
            named[f"{kind}_{side}"] for kind in ("cu_seqlens", "max_seqlen") for side in "qk"
        )
        left, right = named["window_size"]
        assert right == 0
        out = reference_attend(
            q,
            k,
            v,
            attention_varlen.SegmentSpans(*ends),
            scaling=named["scale" if "scale" in named else "softmax_scale"],
            window=None if left == -1 else left + 1,
            softcap=named.get("softcap") or None,
        )
        return (out, torch.zeros(())) if self.adds_lse else out


@pytest.mark.parametrize("window", [None, 3])
def test_torchs_function_is_called_as_it_documents(monkeypatch, window: int | None):
    recorded = Recorded()
    monkeypatch.setattr(attention_varlen, "varlen_attn", recorded)
    function = attention_varlen.torch_varlen().function
    backend = VarlenBackend("varlen", function, FAKE_VARLEN.limits)
    assert_equals_dense(backend, build_row(tangled_samples()), window, None, torch.float64)
    ((positional, named),) = recorded.calls
    assert [end.dtype for end in positional[:2]] == [torch.int32, torch.int32]
    assert named["enable_gqa"] is True  # four query heads share two key heads as they are
    assert named["window_size"] == ((-1, 0) if window is None else (2, 0))


@pytest.mark.parametrize("softcap", [None, 1.5], ids=["", "soft cap"])
@pytest.mark.parametrize(
    ("version", "adds_lse"), [("flash_attn_interface", True), ("flash_attn", False)]
)
def test_the_packages_function_is_called_as_it_documents(monkeypatch, version, adds_lse, softcap):
    recorded = Recorded(adds_lse=adds_lse)
    for name in attention_varlen.FLASH_MODULES:
        module = SimpleNamespace(flash_attn_varlen_func=recorded) if name == version else None
        monkeypatch.setitem(sys.modules, name, module)
    found = attention_varlen.flash_attn()
    backend = VarlenBackend(found.name, found.function, FAKE_VARLEN.limits)
    assert_equals_dense(backend, build_row(tangled_samples()), 3, softcap, torch.float64)
    ((_, named),) = recorded.calls
    assert named["causal"] is True
    assert named["softcap"] == (softcap or 0.0)


def test_a_longest_segment_of_one_token_is_announced_as_two():
    row = build_row([make_sample(0, [7], 1), make_sample(1, [8], 1)])
    plan = FAKE_VARLEN.plan(row, None, torch.float32, CPU)
    assert plan.spans.max_queries == 2


def test_flash_attn_without_the_package_is_refused_with_the_extra_that_has_it(monkeypatch):
    for name in attention_varlen.FLASH_MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"attn_backend: got flash_attn.*asyncgrpo\[gpu\]"):
        choose_backends("flash_attn", CPU)


def test_on_a_cpu_auto_is_sdpa_and_on_a_gpu_varlen():
    q = torch.empty(1, 2, 3, 16, dtype=torch.bfloat16)
    assert choose_backends("auto", CPU).of_layer("Layer", q, q, None) is SDPA
    on_gpu = choose_backends("auto", torch.device("cuda"))
    assert on_gpu._preferred.name == "varlen"
    assert on_gpu._falls_back
    assert not choose_backends("varlen", torch.device("cuda"))._falls_back


def lacking(q: Tensor, v: Tensor, softcap: float | None = None, **limits) -> str | None:
    devices = ("cpu",)
    backend = VarlenBackend("varlen", reference_attend, KernelLimits(devices=devices, **limits))
    return backend.lacks(q, v, softcap)


def test_what_the_kernels_lack_is_told_by_name():
    q = torch.empty(1, 2, 3, 64, dtype=torch.bfloat16)
    assert lacking(q, q) is None
    assert lacking(q.half(), q.half()) is None
    assert lacking(q.float(), q.float()) == "computes in float32"
    assert lacking(q, q, 50.0) == "caps its attention scores at 50.0"
    assert lacking(q, q, 50.0, soft_caps=True) is None
    assert lacking(q[..., :63], q[..., :63]) == "has heads of size 63"
    assert lacking(q.repeat(1, 1, 1, 5), q) == "has heads of size 320"
    assert lacking(q, q[..., :32]) == "has heads of sizes 64 and 32"
    assert attention_varlen.torch_varlen().lacks(q, q, None) == "runs on the CPU"


def test_auto_falls_back_to_sdpa_with_one_line_for_each_thing_lacking(caplog):
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    limited = VarlenBackend(
        "varlen", reference_attend, KernelLimits((torch.float32,), ("cpu",), 256, 1)
    )
    backends = Backends(limited, falls_back=True)
    with caplog.at_level(logging.INFO):
        out = [
            tree(row, q, k, v, softcap=softcap, attention_backends=backends)
            for softcap in (1.5, None, 1.5)
        ]
    for one, softcap in zip(out, (1.5, None, 1.5), strict=True):
        expected = dense(row, q, k, v, None, softcap)
        torch.testing.assert_close(one, expected, rtol=2e-6, atol=2e-6)
    assert [record.getMessage() for record in caplog.records] == [
        "attention by sdpa instead of varlen: Identity caps its attention scores at 1.5"
    ]


def test_a_back_end_named_in_the_recipe_does_not_fall_back():
    row = build_row(tangled_samples())
    q, k, v = states(row, torch.float32)
    with pytest.raises(ConfigError, match=r"got varlen, .* Identity: it runs on the CPU; use auto"):
        tree(row, q, k, v, attention_varlen.torch_varlen())
