"""A child that repeats each message: SOCKET_FD FIRST_WORD are its arguments."""

import contextlib
import socket
import sys
import time
from typing import IO, cast

from asyncgrpo.sandbox import frames


def main():
    channel, first = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    stream = cast("IO[bytes]", channel.makefile("rwb"))
    if not first:
        return
    frames.send(stream, first)
    while (request := frames.receive(stream)) != "end":
        if request == "sleep":
            time.sleep(600)
        if request == "garble":
            channel.sendall(b"\x00\x00\x00\x02no")
        frames.send(stream, request)


if __name__ == "__main__":
    with contextlib.suppress(frames.ClosedError):
        main()
