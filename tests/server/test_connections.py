"""Turns' HTTP against a server that says what it is told to, byte for byte."""

import asyncio
import contextlib
import errno
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from asyncgrpo.server.connections import Answer, Connections

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Script = Callable[[int], bytes | None]  # the how manieth request -> the answer; None = never


class Scripted:
    """A server; `asked` is released for each request, `ended` for each ended connection."""

    def __init__(self, script: Script, *, closes: bool = False) -> None:
        self._script, self.closes = script, closes
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked, self.ended = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.asked.release()
                answer = self._script(len(self.requests) - 1)
                if answer is None:
                    await reader.read()
                    break
                writer.write(answer)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        self.ended.release()


@asynccontextmanager
async def scripted(script: Script, *, closes: bool = False) -> AsyncIterator[Scripted]:
    made = Scripted(script, closes=closes)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


def to(url: str, *, timeout_s: float = 30.0, idle_s: float = 30.0, **headers: str) -> Connections:
    return Connections(url, headers, timeout_s=timeout_s, connect_timeout_s=30.0, idle_s=idle_s)


async def post(connections: Connections, body: bytes = b"body") -> Answer:
    return await connections.post("/generate", body, "application/msgpack")


async def test_a_request_carries_path_headers_and_body():
    async with scripted(lambda _: OK) as server:
        connections = to(server.url + "/models/a/", Authorization="Bearer key")
        assert await post(connections) == Answer(200, b"ok")
        connections.close()
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == b"body"
    assert head.split(b"\r\n") == [
        b"POST /models/a/generate HTTP/1.1",
        b"Host: " + server.url.removeprefix("http://").encode(),
        b"Authorization: Bearer key",
        b"Content-Type: application/msgpack",
        b"Content-Length: 4",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nUpgrade: h2\r\nConnection: Upgrade\r\nX:\r\n" + OK[17:],
        b"http/1.1 200 OK\r\ncontent-length:2\r\n\r\nok".replace(b"http", b"HTTP"),
    ],
    ids=[
        "length",
        "chunks",
        "continue first",
        "trailers",
        "another protocol offered",
        "small letters",
    ],
)
async def test_one_connection_serves_one_request_after_another(answer):
    async with scripted(lambda _: answer) as server:
        connections = to(server.url)
        for _ in range(3):
            assert await post(connections) == Answer(200, b"ok")
        connections.close()
    assert server.connections == 1


async def test_an_answer_may_come_byte_by_byte_and_be_large():
    body = bytes(range(256)) * 4096
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for i in range(60):
            writer.write(large[i : i + 1])
            await asyncio.sleep(0)
        writer.write(large[60:])

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    connections = to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert await post(connections) == Answer(200, body)
    connections.close()
    server.close()


async def test_requests_side_by_side_have_connections_of_their_own():
    async with scripted(lambda _: OK) as server:
        connections = to(server.url)
        answers = await asyncio.gather(*(post(connections, b"%d" % i) for i in range(50)))
        assert answers == [Answer(200, b"ok")] * 50
        again = await asyncio.gather(*(post(connections) for _ in range(50)))
        assert len(again) == 50
        connections.close()
    assert server.connections == 50


@pytest.mark.parametrize("status", [204, 400, 404, 429, 500, 503])
async def test_any_status_is_an_answer(status):
    answer = b"HTTP/1.1 %d Some reason\r\nContent-Length: 0\r\n\r\n" % status
    async with scripted(lambda _: answer) as server:
        connections = to(server.url)
        assert await post(connections) == Answer(status, b"")
        assert await post(connections) == Answer(status, b"")
        connections.close()


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with scripted(lambda _: b"HTTP/1.1 200 OK\r\n\r\nok", closes=True) as server:
        connections = to(server.url)
        assert await post(connections) == Answer(200, b"ok")
        assert await post(connections) == Answer(200, b"ok")
    assert server.connections == 2


async def test_a_connection_that_the_server_closes_is_not_used_again():
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    async with scripted(lambda _: said) as server:
        connections = to(server.url)
        for _ in range(2):
            assert await post(connections) == Answer(200, b"ok")
    assert server.connections == 2
    async with scripted(lambda _: OK, closes=True) as server:  # without a word
        connections = to(server.url)
        assert await post(connections) == Answer(200, b"ok")
        await server.ended.acquire()
        async with asyncio.timeout(120):
            while connections._idle[0].reusable:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        assert await post(connections) == Answer(200, b"ok")
    assert server.connections == 2


async def test_a_request_under_way_at_the_close_is_answered_and_its_connection_closed():
    answer = asyncio.get_running_loop().create_future()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"body")
        asked.set()
        writer.write(await answer)
        assert await reader.read() == b""
        writer.close()
        ended.set()

    asked, ended = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(waits, "127.0.0.1", 0)
    connections = to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    request = asyncio.ensure_future(post(connections))
    async with asyncio.timeout(120):
        await asked.wait()
        connections.close()
        answer.set_result(OK)
        assert await request == Answer(200, b"ok")
        await ended.wait()
    server.close()


async def test_a_connection_whose_request_was_not_read_is_not_used_again():
    """The next request would wait behind it."""
    released = asyncio.Event()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await released.wait()
        writer.close()

    server = await asyncio.start_server(refuses, "127.0.0.1", 0)
    connections = to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with asyncio.timeout(120):
        assert await post(connections, bytes(50_000_000)) == Answer(413, b"")
        assert await post(connections) == Answer(413, b"")
    connections.close()
    released.set()
    server.close()


async def test_every_request_is_answered_by_its_own_answer_whoever_gives_up_meanwhile():
    rng = random.Random(0)

    async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            body = await reader.readexactly(length)
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body
            half = rng.randrange(len(answer))
            writer.write(answer[:half])
            await asyncio.sleep(0.001)
            writer.write(answer[half:])

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await echoes(reader, writer)
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    connections = to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def asks(i: int) -> bool:
        body = b"%d " % i * rng.choice([1, 1000])
        asked = asyncio.ensure_future(post(connections, body))
        if i % 2:
            await asyncio.sleep(rng.random() * 0.01)
            asked.cancel()
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        assert answer == Answer(200, body) or (i % 2 and isinstance(answer, asyncio.CancelledError))
        return not isinstance(answer, BaseException)

    answered = [sum(await asyncio.gather(*(asks(i) for i in range(50)))) for _ in range(10)]
    assert min(answered) >= 25
    connections.close()
    server.close()


async def test_a_peer_whose_machine_vanished_is_no_timeout_of_ours(monkeypatch):
    loop = asyncio.get_running_loop()
    connect, opened = loop.create_connection, []

    async def remembers(*args, **kwargs):
        opened.append((await connect(*args, **kwargs))[1])
        return None, opened[-1]

    monkeypatch.setattr(loop, "create_connection", remembers)
    async with scripted(lambda _: None) as server:
        request = asyncio.ensure_future(post(to(server.url)))
        async with asyncio.timeout(120):
            await server.asked.acquire()
        opened[0].connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        with pytest.raises(ConnectionError, match="machine does not answer"):
            await request


async def test_the_next_address_of_a_name_is_tried_while_the_first_does_not_answer(monkeypatch):
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def two_addresses(_host, port, **_):
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host in ("127.0.0.9", "127.0.0.1")
        ]

    async def never_from_the_first(sock, address):
        await (asyncio.sleep(3600) if address[0] == "127.0.0.9" else connect(sock, address))

    monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
    monkeypatch.setattr(loop, "sock_connect", never_from_the_first)
    async with scripted(lambda _: OK) as server:
        connections = to(server.url.replace("127.0.0.1", "some.name"))
        async with asyncio.timeout(120):
            assert await post(connections) == Answer(200, b"ok")
        connections.close()


async def test_a_connection_idle_for_long_is_not_used_again():
    async with scripted(lambda _: OK) as server:
        connections = to(server.url, idle_s=0.0)
        await post(connections)
        await asyncio.sleep(0.01)
        await post(connections)
        connections.close()
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed before the answer's end"),
        (OK[:-1], "closed before the answer's end"),
        (OK[:20], "closed before the answer's end"),
        (b"HTTP/1.1 204 No Content\r\n", "closed before the answer's end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "closed before the answer's end"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", "no HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "101"),
    ],
)
async def test_half_an_answer_and_what_is_none_are_connection_errors(answer, said):
    async with scripted(lambda i: answer if i == 1 else OK, closes=False) as server:
        connections = to(server.url)
        await post(connections)  # what was heard before says nothing about the next
        server.closes = True
        with pytest.raises(ConnectionError, match=said):
            await post(connections)
        assert await post(connections) == Answer(200, b"ok")
        connections.close()


async def test_more_than_was_asked_for_ends_the_connection():
    async with scripted(lambda _: OK + OK) as server:
        connections = to(server.url)
        for _ in range(2):
            assert await post(connections) == Answer(200, b"ok")
        connections.close()
    assert server.connections == 2


async def test_no_answer_in_time_is_a_timeout_and_closes_the_connection():
    async with scripted(lambda _: None) as server:
        connections = to(server.url, timeout_s=0.05)
        with pytest.raises(TimeoutError):
            await post(connections)
        async with asyncio.timeout(120):
            await server.ended.acquire()


async def test_who_stops_waiting_tells_the_server():
    async with scripted(lambda _: None) as server:
        waiting = asyncio.ensure_future(post(to(server.url)))
        async with asyncio.timeout(120):
            await server.asked.acquire()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(120):
            await server.ended.acquire()


async def test_nobody_there_is_an_os_error():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(OSError, match="Connect call failed"):
            await post(to(f"http://127.0.0.1:{bound.getsockname()[1]}"))


async def test_https_speaks_tls():
    said: list[bytes] = []

    async def hears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.readexactly(1))
        writer.close()

    server = await asyncio.start_server(hears, "127.0.0.1", 0)
    connections = to(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(OSError):
        await post(connections)
    assert said == [b"\x16"]  # a handshake's first byte
    server.close()


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "clé"])
async def test_a_header_cannot_hold_another(value):
    with pytest.raises(ValueError, match="printable ASCII"):
        to("http://127.0.0.1:1", Authorization=value)
