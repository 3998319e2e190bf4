"""One check of a program: the process that starts candidate and judge, and ends both.

    job {code, inputs | null, entry_point, limits}   over the control socket
    inputs given   a run of the program per input           -> [{status, stdout}, ...]
    none           the program, and the tests that the judge reads from a socket of its own
                                                            -> [verdict, ...]

This process runs this package's code only. It never reads the tests, because the candidate
inherits its memory.
"""

import contextlib
import itertools
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import IO, Any, NoReturn, cast

from asyncgrpo.sandbox import candidate, frames, judge
from asyncgrpo.sandbox.confine import confine
from asyncgrpo.sandbox.limits import FOLDER_MB, SandboxLimits
from asyncgrpo.sandbox.protocol import FAILED, OK, TIMEOUT, TOO_MUCH

DISK_CHECK_S = 0.1
BLOCK, SMALLEST_FILE = 512, 4096  # bytes


def main(control_fd: int, tests_fd: int, root: str) -> None:
    """Do the job that the control socket brings, and answer with its outcome."""
    control = socket.socket(fileno=control_fd)
    stream = cast("IO[bytes]", control.makefile("rwb"))
    job = frames.receive(stream)
    limits = SandboxLimits(**job["limits"])
    setting = _Setting(limits, control, root)
    if job["inputs"] is None:
        outcome = _judged(job["code"], job["entry_point"], tests_fd, setting)
    else:
        outcome = [_run(job["code"], each, setting) for each in job["inputs"]]
    frames.send(stream, outcome)


@dataclass(frozen=True, slots=True)
class _Setting:
    limits: SandboxLimits
    control: socket.socket  # the worker closes it when it waits no more
    root: str  # where folders are made


def _judged(code: str, entry_point: str | None, tests_fd: int, setting: _Setting) -> list[str]:
    limits = setting.limits
    near, far = socket.socketpair()
    verdicts_read, verdicts_write = os.pipe()
    with _folder(setting.root) as folder:
        program = _spawn(lambda: _candidate(code, far), limits, folder, keep=[far.fileno()])
        far.close()
        tests = _spawn(
            lambda: _judge(entry_point, near, tests_fd, verdicts_write),
            limits,
            None,
            keep=[near.fileno(), tests_fd, verdicts_write],
        )
        near.close()
        os.close(verdicts_write)
        os.close(tests_fd)
        try:
            collected = _Collected(verdicts_read, limits.output_kb << 10)
            status = _collect(collected, limits.seconds, setting.control, folder)
        finally:
            _end(program)
            _end(tests)
            os.close(verdicts_read)
    return [*_messages(bytes(collected.data)), *([status] if status != OK else [])]


def _run(code: str, text: str, setting: _Setting) -> dict[str, Any]:
    """One run of a program that reads stdin and writes stdout."""
    limits, root = setting.limits, setting.root
    read, write = os.pipe()
    with _folder(root) as folder, tempfile.TemporaryFile(dir=root) as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        program = _spawn(
            lambda: candidate.run_as_main(code),
            limits,
            folder,
            keep=[],
            stdin=stdin.fileno(),
            stdout=write,
        )
        os.close(write)
        status, exit_code = FAILED, 1
        try:
            collected = _Collected(read, limits.output_kb << 10)
            status = _collect(collected, limits.seconds, setting.control, folder)
        finally:
            exit_code = _end(program, wait_s=0.5 if status == OK else 0)
            os.close(read)
    if status == OK and exit_code != 0:
        status = FAILED
    return {"status": status, "stdout": bytes(collected.data).decode(errors="replace")}


class _Collected:
    """The bytes read from a pipe so far."""

    def __init__(self, fd: int, most: int) -> None:
        self.fd = fd
        self.most = most
        self.data = bytearray()


def _collect(collected: _Collected, seconds: float, control: socket.socket, folder: str) -> str:
    """Read to the end; stop at a limit, or when the worker waits no more."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([collected.fd, control], [], [], min(left, DISK_CHECK_S))
        if control in ready:  # nothing more is sent: it was closed
            sys.exit(0)
        if collected.fd in ready:
            data = os.read(collected.fd, 1 << 16)
            if not data:
                return OK
            collected.data += data
        if len(collected.data) > collected.most or _size(folder) > FOLDER_MB << 20:
            return TOO_MUCH
    return TIMEOUT


def _size(folder: str) -> int:
    """Bytes on disk of a folder whose files come and go; empty files count too."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                blocks = entry.stat(follow_symlinks=False).st_blocks
                total += max(blocks * BLOCK, SMALLEST_FILE)
    return total


def _messages(data: bytes) -> list[str]:
    messages: list[str] = []
    while len(data) >= frames.HEADER.size:
        (size,) = frames.HEADER.unpack_from(data)
        body, data = data[frames.HEADER.size :][:size], data[frames.HEADER.size + size :]
        if len(body) == size:
            messages.append(str(frames.json.loads(body)))
    return messages


# The processes


def _candidate(code: str, far: socket.socket) -> None:
    stream = cast("IO[bytes]", far.makefile("rwb"))
    with contextlib.suppress(frames.ClosedError):
        candidate.serve(code, stream, stream)


def _judge(entry_point: str | None, near: socket.socket, tests_fd: int, verdicts: int) -> None:
    stream = cast("IO[bytes]", near.makefile("rwb"))
    with open(tests_fd, "rb") as source:
        tests = frames.receive(source)
    with open(verdicts, "wb") as sink:
        judge.run(tests, entry_point, stream, stream, sink)


def _spawn(
    work: Callable[[], None],
    limits: SandboxLimits,
    folder: str | None,
    *,
    keep: list[int],
    stdin: int | None = None,
    stdout: int | None = None,
) -> int:
    """A confined process that does `work`; its pid."""
    pid = os.fork()
    if pid == 0:
        _become(work, limits, folder, keep=keep, stdin=stdin, stdout=stdout)
    return pid


def _become(
    work: Callable[[], None],
    limits: SandboxLimits,
    folder: str | None,
    *,
    keep: list[int],
    stdin: int | None,
    stdout: int | None,
) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null if stdin is None else stdin, 0)
        os.dup2(null if stdout is None else stdout, 1)
        os.dup2(null, 2)
        _close_all_but({0, 1, 2, *keep})
        os.chdir(folder or "/")
        for name in ("HOME", "TMPDIR"):
            os.environ[name] = folder or "/nonexistent"
        sys.set_int_max_str_digits(0)
        confine(limits, folder)
        work()
        sys.stdout.flush()
        status = 0
    except SystemExit as end:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        status = 0 if end.code in (None, 0) else 1
    except BaseException:  # noqa: BLE001 - a program may raise anything; it has failed
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
    finally:
        os._exit(status)


def _close_all_but(keep: set[int]) -> None:
    bounds = [-1, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
    for low, high in itertools.pairwise(bounds):
        if low + 1 < high:  # of an empty range os.closerange closes everything
            os.closerange(low + 1, min(high, 1 << 16))


def _end(pid: int, *, wait_s: float = 0) -> int:
    """Kill and reap; the exit code of one that ended by itself, within `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)


@contextlib.contextmanager
def _folder(root: str) -> Generator[str]:
    folder = tempfile.mkdtemp(dir=root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
