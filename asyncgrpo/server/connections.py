"""HTTP for turns: each a POST over one of many kept connections.

    path, body  --post-->  idle connection, or a new one  --httptools-->  Answer(status, body)

A worker makes thousands of requests a second, each of one path with a short body and one answer.
A general client spends some 250 us of CPU on one, most of what a short rollout costs; this one
spends 40. It does what turns need and no more: no redirects, cookies, compression or proxies.

A connection serves one request at a time and is kept for the next. Whoever stops waiting closes
it, which tells the server to stop generating.
"""

import asyncio
import ipaddress
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

FIRST_FINAL_STATUS = 200  # below, the answer is still to come
NEXT_ADDRESS_S = 0.25  # a name's next address is tried while the first does not answer (RFC 8305)
# docs/decisions/0044
KEEPALIVE_IDLE_S = 60  # then the peer's machine is asked whether it is still there,
KEEPALIVE_PROBES, KEEPALIVE_INTERVAL_S = 4, 15  # this often
VANISHED_S = KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_INTERVAL_S


class Answer(NamedTuple):
    """An HTTP answer of any status."""

    status: int
    body: bytes


class Connections:
    """Connections to the server at `base_url`, as many as there are requests in flight.

    `idle_s`: one idle for longer may be closing at the other end, and is not used again.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        idle_s: float,
    ) -> None:
        at = urlsplit(base_url)
        secure = at.scheme == "https"
        self._host, self._port = at.hostname or "", at.port or (443 if secure else 80)
        self._next_address_s = None if _is_address(self._host) else NEXT_ADDRESS_S
        self._ssl = ssl.create_default_context() if secure else None
        self._prefix = at.path.rstrip("/")
        fields = {"Host": at.netloc.rpartition("@")[2], **headers}
        self._fields = "".join(f"{name}: {_safe(value)}\r\n" for name, value in fields.items())
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._idle_s = idle_s
        self._idle: deque[_Connection] = deque()  # the longest idle first
        self._closed = False

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        """Send `body` to `path` and wait for the answer, whatever its status.

        Raises:
            TimeoutError: none came within `timeout_s`.
            OSError: no connection within `connect_timeout_s`, or it broke before the end of the
                answer.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fields}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = self._take() or await self._open()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await connection.exchange(head.encode() + body)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and not self._closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """Close those that are idle; the others close as their requests end."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _take(self) -> "_Connection | None":
        oldest = time.monotonic() - self._idle_s
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _open(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    _Connection,
                    self._host,
                    self._port,
                    ssl=self._ssl,
                    happy_eyeballs_delay=self._next_address_s,
                )
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {self._connect_timeout_s:g} s") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.reusable = True
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._started = False  # the head of the answer is there
        self._ends_with_connection = False  # nothing else tells where it ends

    async def exchange(self, request: bytes) -> Answer:
        """Send one request and wait for its answer."""
        assert self._transport is not None, "exchange comes after connection_made"
        if not self.reusable:
            raise ConnectionError("the server closed the connection")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def abort(self) -> None:
        """Close at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        _watch_peer(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked: an error page of a server that closes
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(ConnectionError("it wants to speak another protocol (status 101)"))
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"its answer is no HTTP: {error}"))

    def eof_received(self) -> None:
        self.reusable = False  # what would be sent until `connection_lost` is lost

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if isinstance(exc, TimeoutError):  # the system's, which a caller would take for its own
            exc = ConnectionError("its machine does not answer any more")
        if self._started and self._ends_with_connection and exc is None:
            self.on_message_complete()
        self._fail(exc or ConnectionError("the connection was closed before the answer's end"))

    # Called by the parser

    def on_message_begin(self) -> None:
        self.reusable = self.reusable and self._waiting is not None  # else one too many
        self._body = []
        self._ends_with_connection = True

    def on_header(self, name: bytes, _: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._started = self._parser.get_status_code() >= FIRST_FINAL_STATUS

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._started:
            return
        assert self._transport is not None, "an answer comes after connection_made"
        all_sent = not self._transport.get_write_buffer_size()  # else it refused what it had of it
        self.reusable = self.reusable and all_sent and self._parser.should_keep_alive()
        body, self._body = b"".join(self._body), []  # an idle connection holds no answer
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Answer(self._parser.get_status_code(), body))
        self._waiting, self._started = None, False

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)
        self.abort()


def _watch_peer(sock: socket.socket | None) -> None:
    """Have the system notice a peer whose machine vanished.

    An answer may take half an hour, so silence alone is no sign of it.
    """
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; for a request that was not received
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * VANISHED_S)


def _is_address(host: str) -> bool:
    """True where a host is the address itself, and no name of several."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _safe(value: str) -> str:
    """A header's value; ValueError for one that would end its line or is no ASCII."""
    if not value.isascii() or not value.isprintable():
        raise ValueError("a header's value must be printable ASCII")
    return value
