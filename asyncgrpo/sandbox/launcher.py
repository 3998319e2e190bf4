"""The launcher: forks a check for each program, so Python is started only once.

    python -m asyncgrpo.sandbox.launcher SOCKET_FD MODE      in a folder of its own

takes      two sockets per check, over SOCKET_FD: control and tests
gives      READY once, or why this machine cannot confine; each check answers for itself
waits for  the next pair; ends when the worker closes the socket

It reads neither programs nor tests, so no check inherits another's.
"""

import gc
import os
import shutil
import signal
import socket
import sys

import setproctitle

from asyncgrpo.sandbox import check, frames, landlock
from asyncgrpo.sandbox.confine import confine
from asyncgrpo.sandbox.kernel import PR_SET_PDEATHSIG, prctl
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.protocol import READY


def main() -> None:
    """Fork a check for every pair of sockets."""
    channel, root = socket.socket(fileno=int(sys.argv[1])), os.getcwd()  # noqa: PTH109
    limits = SandboxLimits(without_landlock=sys.argv[2] == "without_landlock")
    setproctitle.setproctitle("asyncgrpo: code")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when to end
    landlock.python_paths()  # looked up once, for all that are forked
    gc.freeze()  # and no child copies memory to collect garbage
    channel.sendall(frames.pack(_trial(limits)))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # checks need no reaping
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1, 2)
        if not data:
            shutil.rmtree(root, ignore_errors=True)  # a killed worker did not remove it
            return
        if os.fork() == 0:
            _check(channel, fds[0], fds[1], root)
        for fd in fds:
            os.close(fd)


def _check(channel: socket.socket, control: int, tests: int, root: str) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        channel.close()
        check.main(control, tests, root)
    finally:
        os._exit(0)


def _trial(limits: SandboxLimits) -> str:
    """Confine a process once, to know that it works here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = READY
        try:
            confine(limits, None)
        except OSError as error:
            said = f"this machine does not let programs be confined: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1 << 12).decode() or "a confined process ended at once"
    os.close(read)
    os.waitpid(pid, 0)
    return said


if __name__ == "__main__":
    main()
