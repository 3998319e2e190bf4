"""One server over HTTP: turns, adapters, pauses, weights, load.

    TurnRequest  --generate-->  Turn              through `endpoint`, tried again while it may pass
    control call --once, and once more on a disconnect-->  None, or a ServerError that says why

Turns share pooled connections: hundreds may be in flight. Control calls are rare, and each opens
a connection of its own: vLLM closes idle ones after 5 s, and a call sent on a dying connection
fails.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec
import numpy as np
import stamina
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams, Turn, TurnRequest
from asyncgrpo.server.api import (
    Endpoint,
    ServedModel,
    ServerInfo,
    served_models,
    server_info,
    weight_version,
)
from asyncgrpo.server.candidates import CandidateSource
from asyncgrpo.server.connections import Connections
from asyncgrpo.server.failures import (
    BAD_CERTIFICATE,
    EngineDeadError,
    RouteMissingError,
    StatusError,
    UnreachableError,
    failure,
    is_transient,
    unreachable,
)
from asyncgrpo.server.load import ServerLoad, parse_load
from asyncgrpo.server.turns_json import (
    completions_request,
    completions_turn,
    generate_request,
    generate_turn,
    prompt_logprobs_answer,
    prompt_logprobs_request,
)
from asyncgrpo.server.turns_packed import packed_request, packed_turn

IDLE_S = 2.0  # an idle connection older than this may be one the server is closing
READY_POLL_S = 0.5  # a server that starts has no way to tell
HEALTH_TIMEOUT_S = 10.0
SPREAD = 5  # a wait is longer by up to as many first waits, at random
ADAPTER_SEEN_WITHIN_S = 15.0  # how late a file may appear on a shared file system

T = TypeVar("T")
OnRetry = Callable[[ServerError], None]
OnWait = Callable[[float], None]

# Retries are counted through `on_retry`; a log line for each would bury everything else.
stamina.instrumentation.set_on_retry_hooks(())


class Retries(NamedTuple):
    """How long a turn is tried: waits double from `first_s` to `longest_s`, and are spread out.

    Hundreds of requests fail at the same moment; they must not come back at the same one.
    """

    attempts: int = 10
    first_s: float = 0.2
    longest_s: float = 10.0


class _Codec(NamedTuple):
    encode: Callable[[TurnRequest, CandidateSource], bytes]
    decode: Callable[[bytes, SamplingParams, CandidateSource], Turn]
    content_type: str


_NO_SERVER = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)  # of /health
_JSON = "application/json"
_CODECS = {
    Endpoint.PACKED: _Codec(packed_request, packed_turn, "application/msgpack"),
    Endpoint.GENERATE: _Codec(generate_request, generate_turn, _JSON),
    Endpoint.COMPLETIONS: _Codec(completions_request, completions_turn, _JSON),
}


class ServerClient:
    """Talks to the server at `base_url`; use as an async context manager, or `aclose` it.

    Every method raises a `ServerError` that names the path, the status and, where a flag of the
    server's is at fault, the flag; `EngineDeadError` when only a restart helps.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: Retries | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        # `capabilities.choose_endpoint` finds the best that this server offers.
        self.endpoint = Endpoint.PACKED
        self.candidates = CandidateSource.NONE
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._on_retry = on_retry
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ServerError(
                f"the API key for {base_url} must be printable ASCII, and holds another character, "
                "such as a line break; see the variable that server.api_key_env names"
            )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._pooled = Connections(
            self.base_url,
            headers,
            timeout_s=timeout_s,
            connect_timeout_s=HEALTH_TIMEOUT_S,
            idle_s=IDLE_S,
        )
        self._fresh = _http_client(self.base_url, headers, timeout_s)

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
        self._pooled.close()
        await self._fresh.aclose()

    # Turns

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
        answer = await self._post(endpoint.value, body, codec.content_type)
        return codec.decode(answer, request.sampling, candidates)

    async def prompt_logprobs(
        self, policy: str, token_ids: Int32[np.ndarray, "n"]
    ) -> Float32[np.ndarray, "n"]:
        """Logprob under `policy` of each token given those before it; entry 0 is 0."""
        body = prompt_logprobs_request(policy, token_ids)

        async def score() -> Float32[np.ndarray, "n"]:
            answer = await self._post(Endpoint.COMPLETIONS.value, body, _JSON)
            return prompt_logprobs_answer(answer, token_ids)

        return await self._retry_request(score)

    # What the server is

    async def wait_ready(self, timeout_s: float, on_wait: OnWait | None = None) -> None:
        """Return once the server is healthy; `on_wait` gets the seconds waited so far.

        Raises `UnreachableError` after `timeout_s`, and `ServerError` at once where something else
        than a server answers.
        """
        start = time.monotonic()
        while (status := await self._health_status()) != HTTPStatus.OK:
            if status in _NO_SERVER:
                raise ServerError(
                    f"{self.base_url}/health answers {status}, so it is no vLLM server; expected "
                    "its base URL, such as http://127.0.0.1:8000"
                )
            waited_s = time.monotonic() - start
            if waited_s > timeout_s:
                raise UnreachableError(
                    f"{self.base_url} is not ready after {waited_s:.0f} s; see the server's log, "
                    "or raise server.vllm_server_timeout"
                )
            if on_wait is not None:
                on_wait(waited_s)
            await asyncio.sleep(READY_POLL_S)

    async def health(self) -> bool:
        """Whether the server answers and its engine lives."""
        return await self._health_status() == HTTPStatus.OK

    async def _health_status(self) -> int | None:
        """What /health answers; None for no answer."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                return (await self._fresh.get(self.base_url + "/health")).status_code
        except (httpx.TransportError, TimeoutError) as error:
            if BAD_CERTIFICATE in str(error):  # which no wait mends
                raise unreachable(self.base_url, "/health", error, self._timeout_s) from error
            return None

    async def models(self) -> tuple[ServedModel, ...]:
        """The base model and the adapters that are served now."""
        return served_models(await self._control("GET", "/v1/models"))

    async def server_info(self) -> ServerInfo:
        """How the server was configured; the first call takes it some seconds."""
        return server_info(await self._control("GET", "/server_info?config_format=json"))

    async def load(self) -> ServerLoad:
        """How busy the server is now."""
        return parse_load((await self._control("GET", "/metrics")).decode())

    # Adapters

    async def load_adapter(self, name: str, path: str) -> None:
        """Serve the adapter in directory `path` as `name`; served already from there is success.

        A path that the server does not see yet is asked for again for some seconds.
        """
        deadline = time.monotonic() + ADAPTER_SEEN_WITHIN_S
        while True:
            try:
                await self._control(
                    "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}
                )
            except StatusError as error:
                if "already been loaded" in str(error):
                    await self._check_served_from(name, path)
                    return
                if "No adapter found" not in str(error) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(READY_POLL_S)
            else:
                return

    async def _check_served_from(self, name: str, path: str) -> None:
        roots = [model.root for model in await self.models() if model.name == name]
        if roots != [path]:
            raise ServerError(
                f"{self.base_url} serves {name!r} from {roots}, not from {path!r}: one name must "
                "mean one set of weights. Unload it, or restart the server"
            )

    async def unload_adapter(self, name: str) -> None:
        """Stop serving `name`; raises a `StatusError` with status 404 where it is not served."""
        await self._control("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    # Weights in place

    async def pause(self, mode: str = "keep") -> None:
        """Freeze generation; `keep` holds what is under way until `resume`."""
        await self._control("POST", f"/pause?mode={mode}")

    async def resume(self) -> None:
        """Go on after `pause`; harmless when not paused."""
        await self._control("POST", "/resume")

    async def start_weight_update(self) -> None:
        """Open a weight update; the server must be paused."""
        await self._control("POST", "/start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Have the weight-transfer engine load what `info` describes."""
        await self._control("POST", "/update_weights", {"update_info": dict(info)})

    async def finish_weight_update(self, version: int) -> None:
        """Close the update; tokens sampled from here on are labelled `version`."""
        await self._control("POST", "/finish_weight_update", {"weight_version": str(version)})

    async def weight_version(self) -> str | None:
        """The label of the weights that are served; "default" before the first update.

        None where the server cannot tell (vLLM before 0.32).
        """
        try:
            return weight_version(await self._control("GET", "/weight_info"))
        except RouteMissingError:
            return None

    async def reset_prefix_cache(self) -> None:
        """Forget cached prefixes, which other weights computed."""
        await self._control("POST", "/reset_prefix_cache")

    # Transport

    async def _retry_request(self, attempt_once: Callable[[], Awaitable[T]]) -> T:
        """The first try goes by itself: what counts the others costs as much as a request."""
        start = time.monotonic()
        try:
            return await attempt_once()
        except ServerError as error:
            left_s = self._timeout_s - (time.monotonic() - start)
            if not is_transient(error) or left_s <= 0:
                raise
            await self._note_failure(error, attempt=1)
            return await self._retry(attempt_once, error, left_s)

    async def _retry(
        self, attempt_once: Callable[[], Awaitable[T]], first: ServerError, left_s: float
    ) -> T:
        retries = self._retries
        tries = stamina.retry_context(
            on=is_transient,
            attempts=retries.attempts,
            timeout=left_s,  # a server that never answers costs one timeout, not ten
            wait_initial=retries.first_s,
            wait_max=retries.longest_s,
            wait_jitter=SPREAD * retries.first_s,
        )
        async for attempt in tries:
            with attempt:
                if attempt.num == 1:
                    raise first
                try:
                    return await attempt_once()
                except ServerError as error:
                    if is_transient(error):
                        await self._note_failure(error, attempt=attempt.num)
                    raise
        raise AssertionError("stamina yields at least one attempt")

    async def _note_failure(self, error: ServerError, *, attempt: int) -> None:
        await self._check_engine(error)
        if self._on_retry is not None and attempt < self._retries.attempts:
            self._on_retry(error)

    async def _check_engine(self, error: ServerError) -> None:
        # No answer says nothing about the engine: the next try will.
        dead = HTTPStatus.SERVICE_UNAVAILABLE
        if isinstance(error, StatusError) and await self._health_status() == dead:
            raise EngineDeadError(
                f"the engine behind {self.base_url} is dead (/health answers 503); its log says "
                "why. Restart the server"
            ) from error

    async def _control(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        try:
            return await self._send(method, path, content)
        except UnreachableError as error:
            if isinstance(error.__cause__, httpx.ReadTimeout):
                raise  # it may still be at work
            return await self._send(method, path, content)

    async def _post(self, path: str, content: bytes, content_type: str) -> bytes:
        """A turn's request, over a kept connection."""
        try:
            answer = await self._pooled.post(path, content, content_type)
        except OSError as error:  # a TimeoutError is one
            raise unreachable(self.base_url, path, error, self._timeout_s) from error
        if answer.status != HTTPStatus.OK:
            raise failure(self.base_url, path, answer.status, answer.body)
        return answer.body

    async def _send(self, method: str, path: str, content: bytes | None) -> bytes:
        """A control call, over a connection of its own."""
        headers = {"Content-Type": _JSON} if content is not None else {}
        try:
            response = await self._fresh.request(
                method, self.base_url + path, content=content, headers=headers
            )
        except httpx.TransportError as error:
            raise unreachable(self.base_url, path, error, self._timeout_s) from error
        if response.status_code != HTTPStatus.OK:
            raise failure(self.base_url, path, response.status_code, response.content)
        return response.content


def _http_client(url: str, headers: Mapping[str, str], timeout_s: float) -> httpx.AsyncClient:
    """One whose every request opens a connection of its own."""
    return httpx.AsyncClient(
        headers=dict(headers),
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=httpx.Timeout(timeout_s, connect=HEALTH_TIMEOUT_S),
        trust_env=False,  # a proxy is not the way to a server of one's own
        # Of no use without TLS, and to load the certificates takes 60 ms.
        verify=ssl.create_default_context() if url.startswith("https:") else False,
    )
