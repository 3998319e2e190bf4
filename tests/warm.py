"""Processes that start at once: forks of one that has imported what they need.

    test --program, arguments, variables--> mother (torch, transformers, ... imported) --fork-->
        the program as `python -m` runs it, now a child of the test's own process

A start of Python with torch and transformers costs 5 s of CPU, with vLLM 9 s, and most tests that
start one want to see what it does afterwards. That programs also start from nothing is for
tests/end_to_end, which uses none of this.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from asyncgrpo.launch.machine import free_port

ROOT = Path(__file__).parents[1]
PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES = 2**20


class Mother:
    """Forks programs that need `modules`; ends with the process that asked for it."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )
        self._one_at_a_time = threading.Lock()

    def start(
        self,
        program: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdout: Any = None,
        stderr: Any = None,
        own_session: bool = False,
    ) -> subprocess.Popen[str]:
        """Run `program`, a module's name; files or PIPE may take its output."""
        order = {"argv": [program, *arguments], "env": dict(env or {}), "session": own_session}
        return _Forked(self, order, stdout, stderr)

    def fork(self, order: dict[str, Any], outputs: Sequence[int]) -> int:
        """The id of the new process, a child of ours."""
        with self._one_at_a_time:
            _adopt_orphans(yes=True)
            try:
                socket.send_fds(self._socket, [json.dumps(order).encode()], outputs)
                answer = self._socket.recv(MOST_BYTES)
            finally:
                _adopt_orphans(yes=False)
        assert answer, f"the process that forks ended: {self._process.wait()}"
        os.waitid(os.P_PID, int(answer), os.WEXITED | os.WNOHANG | os.WNOWAIT)  # or it is not ours
        return int(answer)


class _Forked(subprocess.Popen[str]):
    """A Popen of a child that it did not start itself."""

    def __init__(self, mother: Mother, order: dict[str, Any], stdout: Any, stderr: Any) -> None:
        self.args = order["argv"]
        self.stdin = None
        self.returncode = None
        self.text_mode = True
        self.encoding = self.errors = self._input = None
        self._communication_started = False
        self._waitpid_lock = threading.Lock()
        outputs, self.stdout = _output(stdout, 1)
        errors, self.stderr = _output(stderr, 2)
        self.pid = mother.fork(order, [outputs, errors])
        self._child_created = True
        for given, end in ((stdout, outputs), (stderr, errors)):
            if given == subprocess.PIPE:
                os.close(end)


@contextlib.contextmanager
def ranks(count: int, program: str, *arguments: str) -> Iterator["Ranks"]:
    """The ranks of a program, as torchrun starts them; ended with the block."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
    place |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    with tempfile.TemporaryFile("w+") as errors:
        processes = [
            ours().start(
                program,
                *arguments,
                env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=errors,
            )
            for rank in range(count)
        ]
        try:
            yield Ranks(processes, errors)
        finally:
            for process in processes:
                process.kill()
                process.wait()


class Ranks(NamedTuple):
    """Processes that write to one file."""

    processes: list[subprocess.Popen[str]]
    errors: TextIO

    def finish(self, timeout_s: float = 600) -> str:
        """Waits for the end of all, which must be a good one; what they wrote to stderr."""
        codes = [process.wait(timeout_s) for process in self.processes]
        self.errors.seek(0)
        said = self.errors.read()
        assert codes == [0] * len(codes), said
        return said


def run_ranks(count: int, program: str, *arguments: str) -> str:
    """Run the ranks of a program to their end; what they wrote to stderr."""
    with ranks(count, program, *arguments) as started:
        return started.finish()


def _output(wanted: Any, usual: int) -> tuple[int, Any]:
    """The descriptor to write to, and the file to read from."""
    if wanted == subprocess.PIPE:
        ours, theirs = os.pipe()
        return theirs, open(ours, encoding="utf-8", errors="replace")  # noqa: PTH123
    return (usual if wanted is None else wanted.fileno()), None


def _adopt_orphans(*, yes: bool) -> None:
    """True if orphans of our children become ours, instead of the system's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


@cache
def ours() -> Mother:
    """Of the trainer and the worker."""
    return Mother("asyncgrpo.training.trainer", "asyncgrpo.rollout.worker", *LATER)


@cache
def vllm() -> Mother:
    """Of the server."""
    return Mother("tests.server.vllm_imports")


# What the two import when they load a model, a tokenizer, prompts.
LATER = (
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.auto.tokenization_auto",
    "datasets",
    "tests.training.fixtures",
    "tests.rollout.user_hooks",
)


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for every order; returns in each child, and once nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 2)
        if not message:
            return None
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            child = os.fork()
            if not child:
                os.close(reading)
                os.close(writing)
                return json.loads(message) | {"files": files}
            os.write(writing, str(child).encode())
            os._exit(0)
        os.waitpid(middle, 0)  # now it belongs to who asked
        connection.send(os.read(reading, 32))
        os.close(reading)
        os.close(writing)
        for file in files:
            os.close(file)


def _become(order: dict[str, Any]) -> None:
    """The part between fork and a program's first line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    for target, file in enumerate(order["files"], 1):
        os.dup2(file, target)
        os.close(file)
    os.environ.update(order["env"])
    sys.argv = order["argv"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for name in sys.argv[2:]:
        __import__(name)
    gc.freeze()  # a child that looked through all of it would also copy its pages
    gc.enable()
    order = _serve(connection)
    connection.close()
    if order is not None:
        sys.modules.pop(order["argv"][0], None)  # it is __main__ now
        _become(order)


if __name__ == "__main__":
    main()
