"""Turns from one server, each tried again while its failure may pass (retries.py).

TurnRequest  --encode-->  body  --Transport.post-->  answer  --decode-->  Turn
"""

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import numpy as np
import stamina
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams, Turn, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource
from asyncgrpo.server.client_control import ControlCalls
from asyncgrpo.server.failures import EngineDeadError, StatusError
from asyncgrpo.server.retries import SPREAD, Retries, is_transient
from asyncgrpo.server.transport import JSON, Transport
from asyncgrpo.server.turns_json import (
    completions_request,
    completions_turn,
    generate_request,
    generate_turn,
    prompt_logprobs_answer,
    prompt_logprobs_request,
)
from asyncgrpo.server.turns_packed import packed_request, packed_turn

T = TypeVar("T")
OnRetry = Callable[[ServerError], None]

# Retries are counted through `on_retry`; a log line for each would bury everything else.
stamina.instrumentation.set_on_retry_hooks(())


class _Codec(NamedTuple):
    encode: Callable[[TurnRequest, CandidateSource], bytes]
    decode: Callable[[bytes, SamplingParams, CandidateSource], Turn]
    content_type: str


_CODECS = {
    Endpoint.PACKED: _Codec(packed_request, packed_turn, "application/msgpack"),
    Endpoint.GENERATE: _Codec(generate_request, generate_turn, JSON),
    Endpoint.COMPLETIONS: _Codec(completions_request, completions_turn, JSON),
}


class TurnCalls(ControlCalls):
    """The calls that sample and score tokens."""

    def __init__(
        self,
        base_url: str,
        transport: Transport,
        *,
        timeout_s: float,
        retries: Retries,
        on_retry: OnRetry | None,
    ) -> None:
        super().__init__(base_url, transport)
        # `capabilities.choose_endpoint` finds the best that this server offers.
        self.endpoint = Endpoint.PACKED
        self.candidates = CandidateSource.NONE
        self._timeout_s = timeout_s
        self._retries = retries
        self._on_retry = on_retry

    async def generate(self, request: TurnRequest) -> Turn:
        """Sample one turn; tried again on connection errors, timeouts, 429 and 5xx."""
        return await self._retry_request(
            lambda: self.generate_once(request, self.endpoint, self.candidates)
        )

    async def generate_once(
        self,
        request: TurnRequest,
        endpoint: Endpoint,
        candidates: CandidateSource = CandidateSource.NONE,
    ) -> Turn:
        """Sample one turn through `endpoint`, without another try."""
        codec = _CODECS[endpoint]
        body = codec.encode(request, candidates)
        answer = await self._transport.post(endpoint.value, body, codec.content_type)
        return codec.decode(self._accept(endpoint.value, answer), request.sampling, candidates)

    async def prompt_logprobs(
        self, policy: str, token_ids: Int32[np.ndarray, "n"]
    ) -> Float32[np.ndarray, "n"]:
        """Logprob under `policy` of each token given those before it; entry 0 is 0."""
        path, body = Endpoint.COMPLETIONS.value, prompt_logprobs_request(policy, token_ids)

        async def score() -> Float32[np.ndarray, "n"]:
            answer = await self._transport.post(path, body, JSON)
            return prompt_logprobs_answer(self._accept(path, answer), token_ids)

        return await self._retry_request(score)

    async def _retry_request(self, attempt_once: Callable[[], Awaitable[T]]) -> T:
        """The first answer that is no failure: the inner loop of retries.py."""
        start = time.monotonic()
        try:
            # The first try bypasses stamina, whose bookkeeping costs as much as a request.
            return await attempt_once()
        except ServerError as error:
            first, left_s = error, self._timeout_s - (time.monotonic() - start)
            if left_s <= 0:
                raise
        async for attempt in stamina.retry_context(
            on=is_transient,
            attempts=self._retries.attempts,
            timeout=left_s,  # a server that never answers costs one timeout, not ten
            wait_initial=self._retries.first_s,
            wait_max=self._retries.longest_s,
            wait_jitter=SPREAD * self._retries.first_s,
        ):
            with attempt:
                try:
                    if attempt.num == 1:
                        raise first
                    return await attempt_once()
                except ServerError as error:
                    await self._note_failure(error, attempt.num)
                    raise
        raise AssertionError("stamina yields at least one attempt")

    async def _note_failure(self, error: ServerError, attempt: int) -> None:
        """Count a failure that is tried again; raise EngineDeadError where no try will help."""
        if not is_transient(error):
            return
        # No answer says nothing about the engine: the next try will.
        dead = HTTPStatus.SERVICE_UNAVAILABLE
        if isinstance(error, StatusError) and await self._health() == dead:
            raise EngineDeadError(
                f"the engine behind {self.base_url} is dead (/health answers 503); its log says "
                "why. Restart the server"
            ) from error
        if self._on_retry is not None and attempt < self._retries.attempts:
            self._on_retry(error)
