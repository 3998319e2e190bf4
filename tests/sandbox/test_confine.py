"""Programs that mean harm: what each tries fails, and the machine is as it was.

A program says on stdout what it managed to do; `stdout` is all that comes out of it.
"""

import os
import socket
from pathlib import Path

import pytest

from asyncgrpo.sandbox import landlock
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.programs import Sandbox

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")

QUICK = SandboxLimits(seconds=60.0, cpu_seconds=20.0, memory_mb=512)  # none of these needs as much
TRY = """
def attempt(name, action):
    try:
        action()
        print(name, "done")
    except BaseException as error:
        print(name, type(error).__name__)
import os, socket, subprocess, sys
"""


@pytest.fixture
async def sandbox():
    made = Sandbox()
    yield made
    made.close()


async def ran(sandbox, code, limits=QUICK, text=""):
    (run,) = await sandbox.run(TRY + code, [text], limits)
    return run


def said(run):
    return dict(line.split(maxsplit=1) for line in run.stdout.splitlines())


async def test_no_file_is_written_outside_its_folder(sandbox, tmp_path):
    targets = {"home": Path.home() / "asyncgrpo-hostile", "tmp": tmp_path / "hostile"}
    before = tmp_path / "kept"
    before.write_text("kept")
    lines = [f"attempt({name!r}, lambda: open({str(p)!r}, 'w'))" for name, p in targets.items()]
    lines += [
        f"attempt('append', lambda: open({str(before)!r}, 'a').write('x'))",
        f"attempt('truncate', lambda: os.truncate({str(before)!r}, 0))",
        f"attempt('unlink', lambda: os.unlink({str(before)!r}))",
        f"attempt('rename', lambda: os.rename({str(before)!r}, 'mine'))",
        f"attempt('chmod', lambda: os.chmod({str(before)!r}, 0o777))",
        f"attempt('touch', lambda: os.utime({str(before)!r}))",
        f"attempt('link', lambda: os.link({str(before)!r}, 'mine'))",
        f"attempt('symlink', lambda: os.symlink({str(before)!r}, 'mine'))",
        "attempt('mkdir', lambda: os.mkdir('deep'))",
        "attempt('up', lambda: open('../hostile', 'w'))",
        "attempt('shm', lambda: open('/dev/shm/hostile', 'w'))",
    ]
    mode = before.stat().st_mode
    run = await ran(sandbox, "\n".join(lines))
    assert said(run).keys() == {*targets, "append", "truncate", "unlink", "rename", "chmod",
                                "touch", "link", "symlink", "up", "mkdir", "shm"}  # fmt: skip
    assert set(said(run).values()) == {
        "PermissionError",
        "OSError",
    }  # to rename: across devices
    assert before.read_text() == "kept"
    assert before.stat().st_mode == mode
    assert not any(path.exists() for path in targets.values())


async def test_its_own_folder_is_writable_and_gone_afterwards(sandbox):
    code = """
import tempfile
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("x" * 9)
    print(os.getcwd(), file.name)
open("a", "w").write("b")
os.unlink("a")
"""
    run = await ran(sandbox, code)
    folder, file = run.stdout.split()
    assert run.status == "ok"
    assert file.startswith(folder)
    assert not Path(folder).exists()  # noqa: ASYNC240


async def test_nothing_is_read_but_libraries(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "hunter2")
    code = (
        f"WORKER = {os.getpid()}"
        """
print("env", sorted(k for k in os.environ if "KEY" in k or "TOKEN" in k))
attempt("parent", lambda: open(f"/proc/{os.getppid()}/environ").read())
attempt("passwd", lambda: open("/etc/passwd").read())
attempt("home", lambda: os.listdir(os.path.expanduser("~root")))
attempt("worker", lambda: open(f"/proc/{WORKER}/environ").read())
"""
    )
    run = await ran(sandbox, code)
    assert "hunter2" not in run.stdout
    assert said(run) == {"env": "[]"} | dict.fromkeys(
        ["parent", "passwd", "home", "worker"], "PermissionError"
    )


async def test_no_connection_is_made(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = f"""
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", {port})))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
import urllib.request
attempt("http", lambda: urllib.request.urlopen("http://127.0.0.1:{port}", timeout=1))
"""
        run = await ran(sandbox, code)
        with pytest.raises(TimeoutError):
            server.accept()
    assert set(said(run).values()) <= {"PermissionError", "URLError"}
    assert len(said(run)) == 5


async def test_no_process_is_started_or_touched(sandbox):
    code = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def raw(number, *args):
    if libc.syscall(number, *args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempt("fork", os.fork)
attempt("exec", lambda: os.execv("/bin/sh", ["sh"]))
attempt("subprocess", lambda: subprocess.run(["true"]))
attempt("parent", lambda: os.kill(os.getppid(), signal.SIGKILL))
attempt("all", lambda: os.kill(-1, signal.SIGKILL))
attempt("group", lambda: os.killpg(0, signal.SIGKILL))
attempt("setsid", os.setsid)
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, 19))
attempt("deathsig", lambda: raw(157 if os.uname().machine == "x86_64" else 167, 1, 0, 0, 0, 0))
attempt("clone", lambda: raw(56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0))
"""
    run = await ran(sandbox, code)
    assert said(run) == dict.fromkeys(
        ["fork", "exec", "subprocess", "parent", "all", "group", "setsid", "nice", "deathsig",
         "clone"], "PermissionError"
    )  # fmt: skip
    assert (await ran(sandbox, "print('alive yes')")).stdout == "alive yes\n"


async def test_a_fork_bomb_goes_off_in_nothing(sandbox):
    code = """
made = 0
for _ in range(200):
    try:
        made += os.fork() > 0
    except OSError:
        pass
print("made", made)
"""
    run = await ran(sandbox, code)
    assert said(run) == {"made": "0"}


async def test_a_loop_that_never_ends_is_ended_by_its_cpu_time(sandbox):
    run = await ran(sandbox, "while True: pass", SandboxLimits(seconds=600.0, cpu_seconds=1.0))
    assert run.status == "failed"  # "timeout", were it ended by the clock


async def test_one_that_sleeps_is_ended_by_the_clock_even_if_it_catches_everything(sandbox):
    code = """
import signal, time
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""
    run = await ran(sandbox, code, SandboxLimits(seconds=0.5))
    assert run.status == "timeout"


async def test_memory_is_bounded(sandbox):
    code = """
attempt("once", lambda: bytearray(1 << 31))
def hoard():
    hoarded = []
    while True:
        hoarded.append(bytearray(1 << 24))
attempt("bit by bit", hoard)
attempt("memfd", lambda: os.memfd_create("x"))
"""
    run = await ran(sandbox, code.replace("bit by bit", "slowly"))
    assert said(run) == {
        "once": "MemoryError",
        "slowly": "MemoryError",
        "memfd": "PermissionError",
    }


async def test_output_without_end_is_cut(sandbox):
    limits = SandboxLimits(seconds=60.0, cpu_seconds=60.0, output_kb=64)
    run = await ran(sandbox, "while True: print('x' * 4096)", limits)
    assert run.status == "too much output or disk"
    assert len(run.stdout) < 1 << 18


async def test_files_without_end_are_stopped(sandbox):
    one = await ran(sandbox, "attempt('large', lambda: open('a', 'wb').write(bytes(1 << 25)))")
    assert said(one) == {"large": "OSError"}
    code = """
i = 0
while True:
    with open(str(i), "wb") as file:
        file.write(os.urandom(1 << 22))
    i += 1
"""
    many = await ran(sandbox, code, SandboxLimits(seconds=200.0, cpu_seconds=200.0))
    assert many.status == "too much output or disk"


async def test_empty_files_without_end_are_stopped_too(sandbox):
    code = "for i in range(10**9): open(str(i), 'w').close()"
    run = await ran(sandbox, code, SandboxLimits(seconds=200.0, cpu_seconds=200.0))
    assert run.status == "too much output or disk"


async def test_limits_cannot_be_raised(sandbox):
    code = """
import resource
for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
    attempt(name, lambda: resource.setrlimit(getattr(resource, name), (1 << 40, 1 << 40)))
attempt("parents", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)))
"""
    assert set(said(await ran(sandbox, code)).values()) <= {
        "ValueError",
        "PermissionError",
    }


async def test_threads_numpy_and_asyncio_work(sandbox):
    code = """
import asyncio, threading
import numpy as np
seen = []
thread = threading.Thread(target=lambda: seen.append(1))
thread.start(); thread.join()
print(seen, float((np.ones((64, 64)) @ np.ones((64, 64))).sum()), asyncio.run(asyncio.sleep(0, 5)))
print(input())
"""
    limits = SandboxLimits(seconds=20.0, cpu_seconds=10.0, memory_mb=2048)
    run = await ran(sandbox, code, limits, text="hi\n")
    assert run.stdout == "[1] 262144.0 5\nhi\n"


async def test_without_landlock_nothing_at_all_is_written(tmp_path):
    sandbox = Sandbox(without_landlock=True)
    target = tmp_path / "hostile"
    code = f"""
attempt("outside", lambda: open({str(target)!r}, "w"))
attempt("inside", lambda: open("mine", "w"))
attempt("mkdir", lambda: os.mkdir("mine"))
attempt("socket", socket.socket)
attempt("fork", os.fork)
"""
    limits = SandboxLimits(without_landlock=True)
    run = await ran(sandbox, code, limits)
    sandbox.close()
    assert set(said(run).values()) == {"PermissionError"}
    assert len(said(run)) == 5
    assert not target.exists()
