"""The way to one server: requests out, answers of any status back.

    turns          --post-->  kept connections (connections.py)   hundreds may be in flight
    control calls  --call-->  a connection of its own each (httpx)

Control calls are rare, and vLLM closes idle connections after 5 s: one sent on a dying connection
would fail.
"""

import ssl
from collections.abc import Mapping
from typing import Protocol

import httpx

from asyncgrpo.errors import ServerError
from asyncgrpo.server.connections import Answer, Connections
from asyncgrpo.server.failures import unreachable

IDLE_S = 2.0  # an idle connection older than this may be one the server is closing
CONNECT_TIMEOUT_S = 10.0
JSON = "application/json"


class Transport(Protocol):
    """The two kinds of request a client makes; both raise `UnreachableError` without an answer."""

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """Send a turn's request."""
        ...

    async def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Make a control call; `body` is JSON."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class HttpTransport:
    """The transport over HTTP to the server at `base_url`.

    Raises:
        ServerError: the API key is none that a header can carry.
    """

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float) -> None:
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ServerError(
                f"the API key for {base_url} must be printable ASCII, and holds another character, "
                "such as a line break; see the variable that server.api_key_env names"
            )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._kept = Connections(
            base_url,
            headers,
            timeout_s=timeout_s,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            idle_s=IDLE_S,
        )
        self._fresh = _http_client(base_url, headers, timeout_s)

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """Send a turn's request over a kept connection."""
        try:
            return await self._kept.post(path, body, content_type)
        except OSError as error:  # a TimeoutError is one
            raise unreachable(self._base_url, path, error, self._timeout_s) from error

    async def call(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Make a control call over a connection of its own."""
        headers = {} if body is None else {"Content-Type": JSON}
        try:
            response = await self._fresh.request(
                method, self._base_url + path, content=body, headers=headers
            )
        except httpx.TransportError as error:
            raise unreachable(self._base_url, path, error, self._timeout_s) from error
        return Answer(response.status_code, response.content)

    async def aclose(self) -> None:
        """Close all connections."""
        self._kept.close()
        await self._fresh.aclose()


def _http_client(url: str, headers: Mapping[str, str], timeout_s: float) -> httpx.AsyncClient:
    """A client whose every request opens a connection of its own."""
    return httpx.AsyncClient(
        headers=dict(headers),
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        trust_env=False,  # a proxy is not the way to a server of one's own
        # Of no use without TLS, and to load the certificates takes 60 ms.
        verify=ssl.create_default_context() if url.startswith("https:") else False,
    )
