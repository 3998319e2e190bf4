"""The retry policy: failures that may pass, waits in an outage, its end."""

import itertools
import json

import pytest

from asyncgrpo.errors import RunError, ServerError
from asyncgrpo.server.failures import EngineDeadError, UnreachableError, failure
from asyncgrpo.server.retries import (
    OUTAGE,
    OUTAGE_FIRST_WAIT_S,
    OUTAGE_LONGEST_WAIT_S,
    check_patience,
    is_transient,
    outage_waits,
)

DOWN = UnreachableError("connection refused")


def answered(status: int, message: str) -> ServerError:
    body = json.dumps({"error": {"message": message}}).encode()
    return failure("http://127.0.0.1:8000", "/v1/completions", status, body)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_429_and_5xx_may_pass(status):
    assert is_transient(answered(status, "busy"))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_any_other_4xx_does_not(status):
    assert not is_transient(answered(status, "no"))


def test_no_answer_may_pass_and_is_an_outage():
    assert is_transient(DOWN)
    assert isinstance(DOWN, OUTAGE)


def test_a_dead_engine_does_not_pass_and_is_an_outage():
    dead = answered(500, "EngineCore encountered an issue.")
    assert isinstance(dead, EngineDeadError)
    assert not is_transient(dead)
    assert isinstance(dead, OUTAGE)


@pytest.mark.parametrize("status", [429, 500, 400])
def test_an_answer_is_no_outage(status):
    assert not isinstance(answered(status, "no"), OUTAGE)


def test_waits_of_an_outage_double_up_to_the_longest_and_are_spread_out():
    full = OUTAGE_FIRST_WAIT_S
    for wait_s in itertools.islice(outage_waits(), 10):
        assert full / 2 <= wait_s <= full
        full = min(2 * full, OUTAGE_LONGEST_WAIT_S)
    assert full == OUTAGE_LONGEST_WAIT_S


def check(*, asked_at: float, answered_at: float) -> None:
    check_patience(DOWN, now=100.0, asked_at=asked_at, answered_at=answered_at, patience_s=10.0)


def test_an_outage_is_waited_for():
    check(asked_at=90.0, answered_at=0.0)
    check(asked_at=95.0, answered_at=99.0)


def test_no_answer_to_anybody_ends_the_run():
    with pytest.raises(RunError, match=r"no server answered for 10 s .*connection refused"):
        check(asked_at=89.0, answered_at=0.0)
    with pytest.raises(RunError):
        check(asked_at=10.0, answered_at=89.0)


def test_no_answer_to_one_while_others_are_answered_costs_its_rollout():
    with pytest.raises(
        ServerError, match=r"while others did; lower rollout\.max_completion_length"
    ):
        check(asked_at=89.0, answered_at=99.0)
