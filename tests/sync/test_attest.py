"""Attestation: the faults it finds, and differences that are no fault."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.sync.attest import Attestor, Probe, compare, probe_tokens

from .fakes import TOKENS, FakeServer, logprobs_for

TOLERANCE = 1e-3


def probe(value: float) -> Probe:
    return Probe(TOKENS, logprobs_for(value))


async def no_reload(_server):
    pass


async def attest(attestor, version, value, server, reload=no_reload):
    return await attestor.attest("base", version, probe(value), [server], reload)


def test_the_first_entry_is_not_compared():
    served = logprobs_for(0.0)
    served[0] = np.nan  # nothing predicts the first token
    assert compare(served, logprobs_for(0.0), {}, TOLERANCE).passed


def test_a_difference_by_hand():
    attestation = compare(
        np.array([0, -1, -2], np.float32), np.array([0, -1.5, -2], np.float32), {}, TOLERANCE
    )
    assert (attestation.largest, attestation.mean, attestation.passed) == (0.5, 0.25, False)
    assert compare(
        np.array([0, -1, -2], np.float32), np.array([0, -1.5, -2], np.float32), {}, 0.25
    ).passed


def test_not_a_number_never_passes():
    assert not compare(
        np.array([0, np.nan], np.float32), np.array([0, -1], np.float32), {}, 1e9
    ).passed


@given(st.floats(1e-5, 10), st.integers(0, 99))
def test_weights_of_another_version_are_found_however_small_the_update(update, seed):
    noise = np.random.default_rng(seed).normal(0, update / 40, TOKENS.size).astype(np.float32)
    old, new = (
        logprobs_for(0.0),
        logprobs_for(0.0) - np.float32(update) * np.array([0, 1, 1, 1, 1], np.float32),
    )
    assert compare(old + noise, new, {3: old}, 100.0).stuck_at == 3
    assert compare(new + noise, new, {3: old}, 100.0).passed


@given(st.integers(0, 999), st.floats(0, 1e-3))
def test_rounding_larger_than_an_update_is_no_fault(seed, update):
    rng = np.random.default_rng(seed)
    new = rng.normal(-5, 2, 64).astype(np.float32)
    old = new + rng.normal(0, update, 64).astype(np.float32)
    served = new + rng.normal(0, 0.01, 64).astype(np.float32)
    assert compare(served, new, {0: old}, 0.5).passed


async def test_a_replica_that_serves_the_published_weights_passes():
    server = FakeServer()
    server.values["base"] = 2.0
    assert await attest(Attestor(TOLERANCE), 1, 2.0, server) == 0.0


async def test_a_replica_that_fails_is_reloaded_once_and_loudly(caplog):
    server, reloaded = FakeServer(), []

    async def reload(server):
        reloaded.append(server)
        server.values["base"] = 2.0

    assert await attest(Attestor(TOLERANCE), 1, 2.0, server, reload) == 0.0
    assert reloaded == [server]
    assert "does not serve what was published" in caplog.text


async def test_a_replica_that_fails_twice_is_named_with_figures_and_what_to_look_at():
    server = FakeServer("http://replica-2")
    with pytest.raises(SyncError) as raised:
        await attest(Attestor(TOLERANCE), 9, 2.0, server)
    message = str(raised.value)
    for part in ("http://replica-2", "version 9", "2.00e+00", "1.00e-03", "mount", "dtype"):
        assert part in message


async def test_the_version_it_is_stuck_at_is_told():
    server, attestor = FakeServer(), Attestor(tolerance=0.5)
    for version in range(3):
        server.values["base"] = version * 0.01
        await attest(attestor, version, version * 0.01, server)
    with pytest.raises(SyncError, match="those of version 2"):  # within the tolerance, yet wrong
        await attest(attestor, 3, 0.03, server)


async def test_base_weights_under_an_adapters_name_are_found_long_after_the_first_version():
    server, attestor = FakeServer(), Attestor(tolerance=5.0)
    for version in range(12):
        server.values["base"] = version * 0.1
        await attest(attestor, version, version * 0.1, server)
    server.values["base"] = 0.0
    with pytest.raises(SyncError, match="those of version 0"):
        await attest(attestor, 12, 1.2, server)


async def test_a_replica_that_cannot_score_is_named():
    server = FakeServer("http://replica-2")
    server.fail["score"] = [ServerError("unknown model")]
    with pytest.raises(SyncError, match=r"version 1 cannot be attested: http://replica-2.*unknown"):
        await attest(Attestor(TOLERANCE), 1, 0.0, server)


async def test_an_answer_of_another_length_is_an_error():
    server = FakeServer()
    short = Probe(TOKENS, logprobs_for(0.0)[:3])
    with pytest.raises(SyncError, match="5 logprobs for a probe of 3"):
        await Attestor(TOLERANCE).attest("base", 1, short, [server], no_reload)


def test_the_probe_is_fixed_by_its_seed_and_stays_in_the_vocabulary():
    tokens = probe_tokens(100, seed=1, avoid=[5, 6])
    assert np.array_equal(tokens, probe_tokens(100, seed=1, avoid=[5, 6]))
    assert not np.array_equal(tokens, probe_tokens(100, seed=2, avoid=[5, 6]))
    assert tokens.dtype == np.int32
    assert tokens.min() >= 0
    assert tokens.max() < 100
    assert set(probe_tokens(8, seed=1, avoid=[5, 6]).tolist()) == {0, 1, 2, 3, 4, 7}
    assert not set(tokens.tolist()) & {5, 6}
