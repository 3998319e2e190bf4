"""JSON messages over a pair of files: a length of 4 bytes, then the text.

judge <--request, answer--> candidate     worker <--job, outcome--> check     worker <--> child
"""

import json
import struct
from typing import IO, Any

LARGEST = 64 << 20  # bytes of one message
ENDED = "the process has ended"
HEADER = struct.Struct("!I")


class ClosedError(Exception):
    """The other side has ended, is late, or sends bytes that are no message."""


def pack(message: Any) -> bytes:
    """A message as bytes."""
    body = json.dumps(message).encode()
    return HEADER.pack(len(body)) + body


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message. Raises ClosedError."""
    try:
        stream.write(pack(message))
        stream.flush()
    except OSError as error:
        raise ClosedError(ENDED) from error


def receive(stream: IO[bytes]) -> Any:
    """Read a message. Raises ClosedError."""
    try:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            raise ClosedError(ENDED)
        (size,) = HEADER.unpack(header)
        if size > LARGEST:
            raise ClosedError(f"a message of {size} bytes came; the most is {LARGEST}")
        body = stream.read(size)
        if len(body) < size:
            raise ClosedError(ENDED)
        return json.loads(body)
    except TimeoutError as error:
        raise ClosedError("the process did not answer in time") from error
    except OSError as error:
        raise ClosedError(ENDED) from error
    except (ValueError, RecursionError) as error:
        raise ClosedError(f"what came is no message: {error}") from error
