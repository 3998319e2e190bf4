"""The client without a socket: a scripted transport answers, fails, and keeps what was asked."""

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from asyncgrpo.errors import ServerError
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.connections import Answer
from asyncgrpo.server.failures import (
    EngineDeadError,
    LateAnswerError,
    StatusError,
    UnreachableError,
)
from asyncgrpo.server.retries import Retries
from asyncgrpo.server.turns_packed import pack_answer
from tests.server.conftest import AT_ONCE

TURN = Answer(200, pack_answer([7], [7], [-0.5], "stop"))
BROKEN, LATE = UnreachableError("the connection broke"), LateAnswerError("no answer in time")
Reply = Answer | ServerError


def refused(status: int) -> Answer:
    return Answer(status, json.dumps({"error": {"message": "scripted failure"}}).encode())


class ScriptedTransport:
    """Answers turns and control calls from their lists, of which the last reply repeats."""

    def __init__(
        self, turns: Sequence[Reply] = (TURN,), calls: Sequence[Reply] = (Answer(200, b""),)
    ) -> None:
        self._turns, self._calls = list(turns), list(calls)
        self.posted: list[tuple[str, float]] = []  # path, time
        self.called: list[tuple[str, str, bytes | None]] = []
        self.closed = False

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        self.posted.append((path, time.monotonic()))
        return _next(self._turns)

    async def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self.called.append((method, path, body))
        return _next(self._calls)

    async def aclose(self) -> None:
        self.closed = True


def _next(replies: list[Reply]) -> Answer:
    reply = replies.pop(0) if len(replies) > 1 else replies[0]
    if isinstance(reply, ServerError):
        raise reply
    return reply


def client_of(transport: ScriptedTransport, **options) -> ServerClient:
    defaults: dict[str, Any] = {"retries": AT_ONCE}
    return ServerClient("http://server", transport=transport, **defaults | options)


@pytest.fixture(name="request_one")
def _request_one(make_request):
    return make_request(num_logprobs=0, tokens=1)


async def test_a_turn_that_is_answered_is_one_request_and_no_other_call(request_one):
    transport = ScriptedTransport()
    async with client_of(transport) as client:
        turn = await client.generate(request_one)
    assert turn.output_ids.tolist() == [7]
    assert [path for path, _ in transport.posted] == [Endpoint.PACKED.value]
    assert not transport.called
    assert transport.closed


@pytest.mark.parametrize("trouble", [refused(500), refused(503), refused(429), BROKEN, LATE])
async def test_what_may_pass_is_tried_again_and_counted(request_one, trouble):
    transport, seen = ScriptedTransport([trouble, trouble, TURN]), []
    await client_of(transport, on_retry=seen.append).generate(request_one)
    assert len(transport.posted) == 3
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("trouble", "message"), [(refused(503), "answered 503"), (BROKEN, "the connection broke")]
)
async def test_trying_again_ends(request_one, trouble, message):
    transport, seen = ScriptedTransport([trouble]), []
    with pytest.raises(ServerError, match=message):
        await client_of(transport, on_retry=seen.append).generate(request_one)
    assert len(transport.posted) == AT_ONCE.attempts
    assert len(seen) == AT_ONCE.attempts - 1


async def test_waits_double(request_one):
    transport = ScriptedTransport([BROKEN] * 3 + [TURN])
    retries = Retries(attempts=4, first_s=0.05, longest_s=10)
    await client_of(transport, retries=retries).generate(request_one)
    waits = [after - before for (_, before), (_, after) in pairwise(transport.posted)]
    assert all(wait >= least for wait, least in zip(waits, [0.05, 0.1, 0.2], strict=True))


async def test_requests_that_failed_together_do_not_come_back_together(request_one):
    retries = Retries(attempts=2, first_s=0.1, longest_s=10)

    async def returned_at() -> float:
        transport = ScriptedTransport([BROKEN, TURN])
        await client_of(transport, retries=retries).generate(request_one)
        return transport.posted[-1][1]

    times = await asyncio.gather(*(returned_at() for _ in range(40)))
    assert max(times) - min(times) > 0.25


async def test_no_try_begins_after_the_timeout(request_one):
    class SlowTransport(ScriptedTransport):
        async def post(self, path: str, body: bytes, content_type: str) -> Answer:
            await asyncio.sleep(0.02)
            return await super().post(path, body, content_type)

    transport = SlowTransport([LATE])
    with pytest.raises(LateAnswerError):
        await client_of(transport, timeout_s=0.01).generate(request_one)
    assert len(transport.posted) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_another_4xx_is_never_tried_again(request_one, status):
    transport, seen = ScriptedTransport([refused(status), TURN]), []
    with pytest.raises(StatusError, match=f"answered {status}: scripted failure"):
        await client_of(transport, on_retry=seen.append).generate(request_one)
    assert len(transport.posted) == 1
    assert not seen


async def test_an_unreadable_answer_is_not_asked_for_again(request_one):
    transport = ScriptedTransport([Answer(200, b"<html>"), TURN])
    with pytest.raises(ServerError, match="something unreadable"):
        await client_of(transport).generate(request_one)
    assert len(transport.posted) == 1


@pytest.mark.parametrize("first_failures", [0, 1])
async def test_a_5xx_of_an_engine_that_is_no_longer_healthy_ends_the_tries(
    request_one, first_failures
):
    replies = [refused(429)] * first_failures + [refused(500)]
    health = [Answer(200, b"")] * first_failures + [Answer(503, b"")]
    transport = ScriptedTransport(replies, health)
    with pytest.raises(EngineDeadError, match="/health answers 503"):
        await client_of(transport).generate(request_one)
    assert len(transport.posted) == 1 + first_failures
    assert {path for _, path, _ in transport.called} == {"/health"}


async def test_no_answer_says_nothing_about_the_engine(request_one):
    transport = ScriptedTransport([BROKEN, TURN], [Answer(503, b"")])
    await client_of(transport).generate(request_one)
    assert not transport.called


async def test_a_control_call_whose_connection_broke_is_made_once_more():
    transport = ScriptedTransport(calls=[BROKEN, Answer(200, b"")])
    await client_of(transport).pause()
    assert transport.called == [("POST", "/pause?mode=keep", None)] * 2
    with pytest.raises(UnreachableError, match="broke"):
        await client_of(ScriptedTransport(calls=[BROKEN])).pause()


@pytest.mark.parametrize("reply", [LATE, refused(500)])
async def test_a_control_call_that_is_late_or_refused_is_made_once(reply):
    transport = ScriptedTransport(calls=[reply])
    with pytest.raises(ServerError):
        await client_of(transport).update_weights({"path": "/w"})
    assert transport.called == [("POST", "/update_weights", b'{"update_info":{"path":"/w"}}')]
