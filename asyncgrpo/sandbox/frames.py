"""JSON messages over a pair of files: a length of 4 bytes, then the text.

judge <--request, answer--> candidate     worker <--job, outcome--> check     worker <--> child
"""

import json
import struct
from typing import IO, Any

LARGEST = 64 << 20  # bytes of one message
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
        raise ClosedError(repr(error)) from error


def receive(stream: IO[bytes]) -> Any:
    """Read a message. Raises ClosedError."""
    try:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            raise ClosedError
        (size,) = HEADER.unpack(header)
        if size > LARGEST:
            raise ClosedError
        body = stream.read(size)
        if len(body) < size:
            raise ClosedError
        return json.loads(body)
    except (OSError, ValueError, RecursionError) as error:
        raise ClosedError(repr(error)) from error
