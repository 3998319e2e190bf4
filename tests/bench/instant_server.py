"""A server that answers at once, always the same: what is left is the client's own work.

    python -m tests.bench.instant_server PORT TOKENS K

POST /asyncgrpo/generate   msgpack  \
POST /inference/v1/generate   JSON   >  one answer each, made before the first request
POST /v1/completions          JSON  /
anything else                 404

The answers have the fields and the size of vLLM's: at K = 8 a token takes 380 bytes of JSON.
"""

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Generator

import msgspec
import numpy as np

from asyncgrpo.launch.machine import free_port
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.turns_packed import pack_answer

FIRST_ID, LAST_ID = 10, 900  # of the answers
END = 2  # the last token of each
START_S = 120.0  # on a busy machine


def main() -> None:
    """Serve until killed."""
    port, tokens, num_top = (int(value) for value in sys.argv[1:4])
    answers = {endpoint: answer(endpoint, tokens, num_top) for endpoint in Endpoint}
    asyncio.run(_serve(port, answers))


@contextlib.contextmanager
def instant_server(tokens: int, num_top: int) -> Generator[str]:
    """The URL of a server of answers of `tokens` tokens with `num_top` top logprobs, in a process
    of its own.

    Raises RuntimeError where it does not start.
    """
    port = free_port("127.0.0.1")
    numbers = (str(port), str(tokens), str(num_top))
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.instant_server", *numbers])
    try:
        _wait(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def answer(endpoint: Endpoint, tokens: int, num_top: int) -> bytes:
    """A whole HTTP response."""
    made = _packed if endpoint is Endpoint.PACKED else _json
    kind = "application/msgpack" if endpoint is Endpoint.PACKED else "application/json"
    return _response("200 OK", kind, made(endpoint, tokens, num_top))


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    raise RuntimeError("the instant server does not start")


def _columns(tokens: int, num_top: int) -> tuple[list[int], list[list[int]], list[list[float]]]:
    """Output ids; for each position the sampled token and the top ones, with their logprobs."""
    draw = np.random.default_rng(0)
    ids = draw.integers(FIRST_ID, LAST_ID - num_top, (tokens, 1)) + np.arange(num_top + 1)
    ids[-1, 0] = END
    # The sampled token is the least likely of them, so the others are the top ones.
    logprobs = np.roll(-np.sort(draw.exponential(2.0, (tokens, num_top + 1)), axis=1), 1, axis=1)
    return ids[:, 0].tolist(), ids.tolist(), logprobs.tolist()


def _packed(_: Endpoint, tokens: int, num_top: int) -> bytes:
    output_ids, ids, logprobs = _columns(tokens, num_top)
    flat_ids, flat_logprobs = itertools.chain(*ids), itertools.chain(*logprobs)
    return pack_answer(output_ids, list(flat_ids), list(flat_logprobs), "stop")


def _json(endpoint: Endpoint, tokens: int, num_top: int) -> bytes:
    output_ids, ids, logprobs = _columns(tokens, num_top)
    if endpoint is Endpoint.GENERATE:
        spelled: object = {"content": [_position(*at) for at in zip(ids, logprobs, strict=True)]}
    else:
        spelled = {
            "token_logprobs": [at[0] for at in logprobs],
            "tokens": [f"token_id:{token}" for token in output_ids],
            "top_logprobs": [
                {f"token_id:{token}": logprob for token, logprob in zip(*at, strict=True)}
                for at in zip(ids, logprobs, strict=True)
            ],
            "text_offset": list(range(tokens)),
        }
    choice = {"index": 0, "text": "x", "token_ids": output_ids, "logprobs": spelled}
    return msgspec.json.encode({"choices": [choice | {"finish_reason": "stop"}], "usage": {}})


def _position(ids: list[int], logprobs: list[float]) -> dict[str, object]:
    spelled: list[dict[str, object]] = [
        {"token_id": token, "token": f"token_id:{token}", "logprob": logprob, "bytes": None}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    return spelled[0] | {"top_logprobs": spelled}


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Instant(asyncio.Protocol):
    """A connection: request by request."""

    def __init__(self, answers: dict[Endpoint, bytes]) -> None:
        self._answers = {endpoint.value.encode(): body for endpoint, body in answers.items()}
        self._missing = _response("404 Not Found", "text/plain", b"")
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == _LENGTH), 0
            )
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            self._transport.write(self._answers.get(head.split(b" ", 2)[1], self._missing))


_LENGTH = b"content-length:"


async def _serve(port: int, answers: dict[Endpoint, bytes]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Instant(answers), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    main()
