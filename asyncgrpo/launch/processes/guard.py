"""The guard of one process of the run: ends it when the launcher has ended.

    launcher --pipe on stdin--> guard --fork--> the program --> its own children
                    |
                    closes when the launcher ends, however it ends

The guard leads a process group and becomes the parent of processes that its descendants leave. It
ends the program when it gets SIGTERM or when the pipe closes: SIGTERM to the program, after a grace
SIGKILL to every descendant; SIGQUIT ends the grace. Then the guard ends with the same exit code or
signal. If the guard itself is killed, the kernel terminates the program.

Run as a file, with the standard library alone: `python guard.py STOP_GRACE_S PROGRAM [ARG ...]`.
Descendants are found and adopted on Linux only; elsewhere the launcher signals the process group.
"""

import contextlib
import ctypes
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_GRACE_S = 8.0  # after the end of the launcher; all must have ended 15 s later
LEFTOVER_GRACE_S = 2.0  # for processes that the program left when it ended


def main() -> None:
    """Run the program named on the command line until it ends or has to."""
    stop_grace_s, argv = float(sys.argv[1]), sys.argv[2:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    for wake_on in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(wake_on, noted)
    child = start(argv)
    status = watch(child, stop_grace_s, wake_reader)
    end_leftovers()
    end_like(status)


def noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: a signal without a handler would not reach the wake-up pipe."""


def start(argv: list[str]) -> int:
    """Fork the program; it gets SIGTERM should the guard die. Returns its process id."""
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    signal.set_wakeup_fd(-1)
    for changed in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(changed, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # no shell is wanted
    except OSError as error:
        print(f"error: cannot start {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def watch(child: int, stop_grace_s: float, wake_reader: int) -> int:
    """Wait until the program has ended, or end it; returns its wait status.

    On SIGTERM: SIGTERM to the program, `stop_grace_s` later SIGKILL to all descendants. On SIGQUIT:
    the same without the grace. When the launcher has ended: the same with `ORPHAN_GRACE_S`.
    """
    watched, deadline = [0, wake_reader], math.inf
    while True:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select(watched, [], [], left)
        signals = os.read(wake_reader, 4096) if wake_reader in readable else b""
        status = reap(child)
        if status is not None:
            return status
        if signal.SIGTERM in signals or signal.SIGQUIT in signals:
            grace_s = 0.0 if signal.SIGQUIT in signals else stop_grace_s
            deadline = min(deadline, time.monotonic() + grace_s)
            terminate(child)
        if 0 in readable:
            watched.remove(0)
            deadline = min(deadline, time.monotonic() + ORPHAN_GRACE_S)
            terminate(child)
        if time.monotonic() >= deadline:
            send_to_descendants(signal.SIGKILL)
            return os.waitpid(child, 0)[1]


def terminate(child: int) -> None:
    """Send SIGTERM to the program alone: it ends its own children."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def reap(child: int) -> int | None:
    """Collect every process that ended; the wait status of `child` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                status = ended[1]
    return status


def end_leftovers() -> None:
    """End the processes that the program left: SIGTERM, then SIGKILL."""
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    sent = send_to_descendants(signal.SIGTERM)
    while sent and time.monotonic() < deadline:
        time.sleep(0.02)
        reap(0)
        sent = list(descendants(os.getpid()))
    deadline = time.monotonic() + LEFTOVER_GRACE_S  # one in a system call may not die at all
    while send_to_descendants(signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.02)
        reap(0)


def end_like(status: int) -> None:
    """End this process with the program's exit code, or by the signal that ended it."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    signal.set_wakeup_fd(-1)
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # a signal that does not end a process


def send_to_descendants(signal_number: int) -> list[int]:
    """Send a signal to every descendant; returns their process ids."""
    found = list(descendants(os.getpid()))
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
    return found


def descendants(root: int) -> Iterator[int]:
    """Process ids below `root`, read from /proc; none where there is no /proc."""
    children = Path(f"/proc/{root}/task")
    with contextlib.suppress(OSError):
        for task in children.iterdir():
            for pid in (task / "children").read_text().split():
                yield int(pid)
                yield from descendants(int(pid))


def prctl(option: int, value: int) -> None:
    """Set a process attribute on Linux; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
