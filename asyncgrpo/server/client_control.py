"""Calls about the server itself: is it ready, what is it, how busy is it.

A control call whose connection breaks is made once more; one that is not answered in time is not,
as the server may still be at work on it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import msgspec

from asyncgrpo.errors import ServerError
from asyncgrpo.server.api import ServedModel, ServerInfo, served_models, server_info
from asyncgrpo.server.connections import Answer
from asyncgrpo.server.failures import (
    BAD_CERTIFICATE,
    LateAnswerError,
    NoConnectionError,
    UnreachableError,
    failure,
)
from asyncgrpo.server.load import ServerLoad, parse_load
from asyncgrpo.server.transport import Transport

READY_POLL_S = 0.5  # a server that starts has no way to tell
HEALTH_TIMEOUT_S = 10.0
NOBODY = "no server listens there"
_NO_SERVER = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)  # of /health

OnWait = Callable[[float, str], None]  # seconds waited, the last answer or the want of one


class ControlCalls:
    """The calls that any server answers; the base of all others.

    Every method raises a `ServerError` that names the path, the status and, where a flag of the
    server's is at fault, the flag; `EngineDeadError` when only a restart helps.
    """

    def __init__(self, base_url: str, transport: Transport) -> None:
        self.base_url = base_url
        self._transport = transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def wait_ready(self, timeout_s: float, on_wait: OnWait | None = None) -> None:
        """Return once the server is healthy; `on_wait` hears that it is not yet.

        Raises `UnreachableError` after `timeout_s`, and `ServerError` at once where something else
        than a server answers.
        """
        start = time.monotonic()
        while (found := await self._health()) != HTTPStatus.OK:
            why = found if isinstance(found, str) else f"/health answers {found}"
            if found in _NO_SERVER:
                raise ServerError(
                    f"{self.base_url}{why}, so it is no vLLM server; expected "
                    "its base URL, such as http://127.0.0.1:8000"
                )
            waited_s = time.monotonic() - start
            if waited_s > timeout_s:
                raise UnreachableError(
                    f"{self.base_url} is not ready after {waited_s:.0f} s ({why}); see the "
                    "server's log, or raise server.vllm_server_timeout"
                )
            if on_wait is not None:
                on_wait(waited_s, why)
            await asyncio.sleep(READY_POLL_S)

    async def health(self) -> bool:
        """True where the server answers and its engine lives."""
        return await self._health() == HTTPStatus.OK

    async def models(self) -> tuple[ServedModel, ...]:
        """The base model and the adapters that are served now."""
        return served_models(await self._control("GET", "/v1/models"))

    async def server_info(self) -> ServerInfo:
        """The server's configuration; the first call takes it some seconds."""
        return server_info(await self._control("GET", "/server_info?config_format=json"))

    async def load(self) -> ServerLoad:
        """The load of the server now."""
        return parse_load((await self._control("GET", "/metrics")).decode())

    async def _health(self) -> int | str:
        """The status of /health, or why there is none."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                return (await self._transport.call("GET", "/health")).status
        except (UnreachableError, TimeoutError) as error:
            if BAD_CERTIFICATE in str(error):  # which no wait mends
                raise
            return NOBODY if isinstance(error, NoConnectionError) else "no answer"

    async def _control(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> bytes:
        """The body that a control call is answered with."""
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._transport.call(method, path, content)
        except LateAnswerError:
            raise
        except UnreachableError:
            answer = await self._transport.call(method, path, content)
        return self._accept(path, answer)

    def _accept(self, path: str, answer: Answer) -> bytes:
        if answer.status != HTTPStatus.OK:
            raise failure(self.base_url, path, answer.status, answer.body)
        return answer.body
