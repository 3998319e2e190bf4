"""The script for GPUs works before it meets one; on a GPU, it is the test."""

import dataclasses
import math

import pytest
import torch

from asyncgrpo.training.attention.attention_varlen import (
    KernelLimits,
    SegmentSpans,
    VarlenBackend,
    torch_varlen,
)
from asyncgrpo.training.head import head_products
from tests.gpu import agreement, head
from tests.gpu.__main__ import main, report
from tests.gpu.line import Line
from tests.gpu.made_rows import Group, forked_row
from tests.training.fake_varlen import FAKE_VARLEN, reference_attend
from tests.training.mixed_products import MixedProducts


def test_on_a_cpu_the_stand_in_passes_every_check(capsys):
    assert main(["--cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count(" ok") == 2 * 2 * len(agreement.LAYERS) + 2 * 2 * len(head.SHAPES)
    assert "speed-up at R = 3.4" in out
    assert "all checks passed" in out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.timeout(480)
def test_on_a_gpu_the_kernels_do():
    assert main([]) == 0


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "--cpu" in capsys.readouterr().err


def errors(function) -> list[Line]:
    backend = dataclasses.replace(FAKE_VARLEN, function=function)
    cpu = torch.device("cpu")
    return list(agreement.check(forked_row(6), [backend], (torch.float32, torch.bfloat16), cpu))


def top_left(q, k, v, spans, **options):
    """A kernel that aligns the first query with the first key."""
    outputs = []
    for s in range(len(spans.query_ends) - 1):
        a, b = spans.query_ends[s : s + 2].tolist()
        c = int(spans.key_ends[s])
        one = SegmentSpans(torch.tensor([0, b - a]), torch.tensor([0, b - a]), b - a, b - a)
        outputs.append(reference_attend(q[a:b], k[c : c + b - a], v[c : c + b - a], one, **options))
    return torch.cat(outputs)


def wider_window(q, k, v, spans, *, window, **options):
    """A kernel that counts the query's own key apart from the window."""
    window = None if window is None else window + 1
    return reference_attend(q, k, v, spans, window=window, **options)


def unscaled(q, k, v, spans, *, scaling, **options):
    """A kernel that scales by something else."""
    return reference_attend(q, k, v, spans, scaling=1.1 * scaling, **options)


@pytest.mark.parametrize("wrong", [top_left, wider_window, unscaled])
def test_a_wrong_kernel_fails(wrong):
    lines = errors(wrong)
    affected = [line for line in lines if wrong is not wider_window or "window 2" in line.what]
    assert len(affected) >= 4
    assert [line.what for line in affected if not line.failed] == []
    assert report(iter(lines)) == 1


def head_lines() -> list[Line]:
    size, dtypes = head.Size(199, 64, 48), (torch.bfloat16, torch.float32)
    return list(head.check(size, dtypes, torch.device("cpu")))


def test_the_products_of_cuda_pass_the_checks_of_the_head(monkeypatch):
    monkeypatch.setattr(head_products, "has_mixed_products", lambda _: True)
    with MixedProducts() as products:
        lines = head_lines()
    assert products.count
    assert [str(line) for line in lines if line.failed] == []


def test_a_product_rounded_to_16_bits_fails(monkeypatch):
    monkeypatch.setattr(head_products, "has_mixed_products", lambda _: True)
    with MixedProducts(rounds=True):
        lines = head_lines()
    assert [line.what for line in lines if line.failed] == [
        line.what for line in lines if "bfloat16" in line.what and "logprobs" in line.what
    ]


def test_layers_that_a_back_end_lacks_kernels_for_are_left_out():
    cpu = torch.device("cpu")
    limits = KernelLimits((torch.float32,), ("cpu",), 256, 8)
    capless = VarlenBackend("varlen", reference_attend, limits)
    found = list(agreement.check(forked_row(3), [capless], (torch.float32,), cpu))
    assert len(found) == len(agreement.LAYERS) - 1
    assert not list(agreement.check(forked_row(3), [torch_varlen()], (torch.float32,), cpu))


def test_the_group_has_the_ratio_it_says():
    group = Group(num_samples=8, prompt=209, completion=50)
    packed, plain = (group.row(shared=shared).input_ids_N.size for shared in (True, False))
    assert plain == 8 * 259
    assert plain / packed == pytest.approx(group.ratio, rel=0.02)  # forks repeat a token


def test_a_figure_that_is_no_number_fails():
    assert Line("x", math.nan, 1.0).failed
    assert Line("x", math.nan, 1.0, at_least=True).failed
    assert not Line("x", math.nan).failed
