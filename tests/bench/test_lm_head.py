"""The two ways that B3 compares: they give the same logprobs and gradients."""

import subprocess
import sys

import msgspec
import pytest
import torch

from tests.bench import lm_head


def test_both_variants_compute_the_same(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"V": 300, "N": 64, "T": 32, "H": 16}.items():
        monkeypatch.setattr(lm_head, name, value)
    given = lm_head._draw()
    found = []
    for variant in (lm_head._ours, lm_head._full):
        logprobs = variant(given)
        total = (logprobs * given.gradient_TC).sum()
        found.append((logprobs, *torch.autograd.grad(total, [given.hidden_NH, given.weight_VH])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_bar_is_an_eighth_of_what_full_logits_take(monkeypatch: pytest.MonkeyPatch):
    extra_mb = {"ours": iter([9.0, 7.0, 50.0]), "full": iter([90.0, 80.0, 60.0])}
    monkeypatch.setattr(
        lm_head,
        "_in_a_process_of_its_own",
        lambda variant: lm_head.Measured(cpu_s=1.0, extra_mb=next(extra_mb[variant])),
    )
    judged, *shown = lm_head.measure()
    assert judged.value == pytest.approx(9 / 80)  # of the medians
    assert judged.passed
    assert {figure.bench for figure in (judged, *shown)} == {"B3"}
    assert all(figure.passed is None for figure in shown)


def test_a_variant_is_measured_in_a_process_of_its_own():
    small = "from tests.bench import lm_head as b; b.V, b.N, b.T, b.H = 20_000, 512, 256, 16; "
    argv = [sys.executable, "-c", small + "b.main('full')"]  # fresh: no heap to use again
    output = subprocess.run(argv, check=True, capture_output=True).stdout
    measured = msgspec.json.decode(output.splitlines()[-1], type=lm_head.Measured)
    assert measured.cpu_s > 0
    assert measured.extra_mb >= 2 * 256 * 20_000 * 4 / 1e6  # logits and logprobs at least
