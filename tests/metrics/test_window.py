"""The naming rule by hand, then what holds for every merge order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.metrics.values import Aggregate, Recorder
from asyncgrpo.metrics.window import Reduction, reduce_window, reduction_of

values = st.floats(-1e6, 1e6, allow_nan=False)
observations = st.lists(st.tuples(values, st.floats(0.1, 100)), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("reward", Reduction.MEAN),
        ("rewards/count/mean", Reduction.MEAN),  # a reward named count is still a mean
        ("sample/dropped_stale_count", Reduction.SUM),
        ("ledger/trained_count", Reduction.SUM),
        ("completions/min_terminated_length", Reduction.MIN),
        ("sampling/importance_sampling_ratio/max", Reduction.MAX),
        ("rollout/account_s", Reduction.MEAN),  # `count` inside a word is not the word
        ("clip_ratio/low_min", Reduction.MIN),
        ("num_tokens", Reduction.LATEST),
        ("someone/elses_metric", Reduction.MEAN),
    ],
)
def test_the_last_part_of_a_name_says_how_it_reduces(name: str, reduction: Reduction):
    assert reduction_of(name) is reduction


def test_a_window_by_hand():
    recorder = Recorder()
    recorder.record("reward", 1.0, weight=3)
    recorder.record("reward", 0.0, weight=1)
    recorder.record_rate("rollout/generated_tokens_per_s", total=300, seconds=2)
    recorder.record_rate("rollout/generated_tokens_per_s", total=100, seconds=6)
    recorder.record_all("sample/dropped_stale_count", [2, 0, 5])
    recorder.record_all("completions/max_length", [7, 12, 3])
    recorder.record_all("completions/min_length", [7, 12, 3])
    recorder.record_all("num_tokens", [100, 250])
    assert reduce_window(recorder.drain()) == {
        "reward": 0.75,
        "rollout/generated_tokens_per_s": 50.0,  # 400 tokens / 8 s, not (150 + 16.7) / 2
        "sample/dropped_stale_count": 7,
        "completions/max_length": 12,
        "completions/min_length": 3,
        "num_tokens": 250,
    }


def test_a_metric_without_weight_is_absent():
    assert reduce_window({"reward": Aggregate(0.0, 0.0, math.inf, -math.inf)}) == {}


def test_tools_that_nobody_called_fail_not_a_number_of_times():
    recorder = Recorder()
    recorder.record("tools/failure_frequency", 0.0, weight=0)
    assert math.isnan(reduce_window(recorder.drain())["tools/failure_frequency"])
    recorder.record("tools/failure_frequency", 0.0, weight=0)
    recorder.record("tools/failure_frequency", 0.5, weight=4)
    assert reduce_window(recorder.drain()) == {"tools/failure_frequency": 0.5}


@given(observations, st.data())
def test_a_window_does_not_depend_on_who_observed_what(seen, data: st.DataObject):
    alone, parts = Recorder(), [Recorder() for _ in range(3)]
    for value, weight in seen:
        for name in ("loss", "a/b_count", "a/b_max", "a/b_min"):
            alone.record(name, value, weight)
            parts[data.draw(st.integers(0, 2))].record(name, value, weight)
    merged = Recorder()
    for part in parts:
        merged.merge(part.drain())
    expected, got = reduce_window(alone.drain()), reduce_window(merged.drain())
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-6)


@given(observations)
def test_a_mean_lies_between_the_extremes(seen):
    recorder = Recorder()
    for value, weight in seen:
        recorder.record("x", value, weight)
        recorder.record("x_max", value, weight)
        recorder.record("x_min", value, weight)
    window = reduce_window(recorder.drain())
    slack = 1e-9 * max(1.0, abs(window["x_max"]), abs(window["x_min"]))
    assert window["x_min"] - slack <= window["x"] <= window["x_max"] + slack
