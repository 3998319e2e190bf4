"""Observations merge exactly and travel as plain numbers."""

import msgspec
import numpy as np
import pytest

from asyncgrpo.metrics.values import Aggregate, Recorder


def test_weights_count():
    recorder = Recorder()
    recorder.record("loss", 2.0, weight=3)
    recorder.record("loss", 6.0)
    assert recorder.drain() == {"loss": Aggregate(12.0, 4.0, 2.0, 6.0)}


def test_drained_observations_are_gone():
    recorder = Recorder()
    recorder.record("loss", 1.0)
    recorder.drain()
    assert recorder.drain() == {}


def test_a_rate_over_no_time_is_no_observation():
    recorder = Recorder()
    recorder.record_rate("rollout/generated_tokens_per_s", total=5, seconds=0.0)
    assert recorder.drain() == {}


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.float64(1.5), np.int64(2)])
def test_numpy_scalars_travel_as_numbers(scalar):
    recorder = Recorder()
    recorder.record("reward", scalar, weight=scalar)
    recorder.record_rate("rate_tokens_per_s", total=scalar, seconds=scalar)
    recorder.record_all("rewards/x/mean", [scalar])
    sent = recorder.drain()
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=dict[str, Aggregate])
    assert received == sent
