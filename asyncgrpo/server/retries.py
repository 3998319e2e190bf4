"""The retries of a turn: one policy, in two loops.

    loop   held by                    tries again after               ends
    inner  client_turns.TurnCalls     no answer, 429, 5xx             after `Retries.attempts` or
                                                                      `server.vllm_server_timeout`
    outer  rollout.sampling.Sampler   an inner loop that ended        after `vllm_server_timeout`:
           (outlasts an outage)       without an answer; a dead       see `check_patience`
                                      engine, which ends it at once

Generation is idempotent (each request has its own seed), so whatever may pass is tried again.
Another 4xx is our mistake and an unreadable answer is the server's: both end the turn at once. A
5xx that stays ends it with the inner loop. Each of these costs one rollout; an outage that lasts
costs the run. A name that the server does not know is not tried again: `Sampler` asks for the
policy that replaced it. Pure: nothing here waits.

Before its first turn a worker looks for the endpoint that generates, and asks a server that still
starts again (`rollout.worker`): a call of its own, with as many tries as `MEET_ATTEMPTS`.
"""

import random
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

from asyncgrpo.errors import RunError, ServerError
from asyncgrpo.server.failures import EngineDeadError, StatusError, UnreachableError

OUTAGE = (EngineDeadError, UnreachableError)  # only time or a restart helps
OUTAGE_FIRST_WAIT_S, OUTAGE_LONGEST_WAIT_S = 0.5, 15.0
SPREAD = 5  # a wait of the inner loop is longer by up to as many first waits, at random


class Retries(NamedTuple):
    """The inner loop: tries of one request, and waits that double from `first_s` on.

    Waits are spread out: hundreds of requests that fail at the same moment must not come back at
    the same one.
    """

    attempts: int = 10
    first_s: float = 0.2
    longest_s: float = 10.0


def is_transient(error: BaseException) -> bool:
    """True where the same request may succeed a little later."""
    if isinstance(error, StatusError):
        too_many = error.status == HTTPStatus.TOO_MANY_REQUESTS
        return too_many or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, UnreachableError)


def outage_waits() -> Iterator[float]:
    """Seconds between the requests of one turn in an outage: doubling, shortened at random."""
    wait_s = OUTAGE_FIRST_WAIT_S
    while True:
        yield wait_s * random.uniform(0.5, 1.0)
        wait_s = min(2 * wait_s, OUTAGE_LONGEST_WAIT_S)


def check_patience(
    error: ServerError, *, now: float, asked_at: float, answered_at: float, patience_s: float
) -> None:
    """Raise where a turn's outage has lasted for longer than `patience_s`; `error` is the last.

    Args:
        error: what the latest request ended with.
        now: the time, in seconds of a clock that the next two share.
        asked_at: when the turn was first asked for.
        answered_at: when the server last answered any request.
        patience_s: `server.vllm_server_timeout`.

    Raises:
        RunError: nothing was answered for so long.
        ServerError: only this turn was not: its rollout is lost.
    """
    if now - max(asked_at, answered_at) > patience_s:
        raise RunError(
            f"no server answered for {patience_s:.0f} s (server.vllm_server_timeout); last: {error}"
        ) from error
    if now - asked_at > patience_s:
        raise ServerError(
            f"a request got no answer for {patience_s:.0f} s (server.vllm_server_timeout) "
            f"while others did; lower rollout.max_completion_length, or raise it: {error}"
        ) from error
