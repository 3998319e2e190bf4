"""A Python process of this package, from the side of the process that starts it.

    Child(module)  --python -m MODULE SOCKET_FD-->  process
                   <---- READY, or why not ------
                   ---- a message -------------->
                   <---- a message, in time -----

ClosedError: it ended, is late, or sends no message. End it then, and start another.
"""

import atexit
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import IO, Any, cast

from asyncgrpo.sandbox import frames
from asyncgrpo.sandbox.protocol import READY

START_TIMEOUT_S = 60.0  # imports on a busy machine


class Child:
    """A process that serves one caller at a time; it ends with this process.

    With `isolated` it gets a folder of its own, to work in, and an environment without secrets.

    Raises:
        ClosedError: it did not start; the text is the reason that it gave, if it gave one.
    """

    def __init__(self, module: str, *arguments: str, isolated: bool = False) -> None:
        self.folder = tempfile.mkdtemp(prefix="asyncgrpo-code-") if isolated else None
        self.channel, theirs = socket.socketpair()
        python = [sys.executable, *(["-I"] if isolated else [])]
        with theirs:
            self._process = subprocess.Popen(
                [*python, "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment() if isolated else None,
                cwd=self.folder,
                pass_fds=[theirs.fileno()],
            )
        self._stream = cast("IO[bytes]", self.channel.makefile("rwb"))
        atexit.register(self.end)
        try:
            self._expect_ready()
        except frames.ClosedError:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True until the process has ended, by itself or by force."""
        return self._process.poll() is None

    def ask(self, message: Any, timeout_s: float) -> Any:
        """Send a message and return the answer. Raises ClosedError."""
        self.channel.settimeout(timeout_s)
        frames.send(self._stream, message)
        return frames.receive(self._stream)

    def end(self) -> None:
        """Kill the process; remove its folder."""
        atexit.unregister(self.end)
        self._process.kill()
        self._process.wait()
        for end in (self._stream, self.channel):
            with contextlib.suppress(OSError):
                end.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _expect_ready(self) -> None:
        self.channel.settimeout(START_TIMEOUT_S)
        first = frames.receive(self._stream)
        if first != READY:
            raise frames.ClosedError(str(first))


def _environment() -> dict[str, str]:
    """An environment without secrets; numeric libraries compute in one thread."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} | dict.fromkeys(threads, "1")
