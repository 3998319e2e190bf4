"""Real processes: order, first exit, stopping, and that nobody is left behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncgrpo.launch.processes.guard import descendants
from asyncgrpo.launch.processes.interrupts import Interrupts
from asyncgrpo.launch.processes.process import Exit, Process
from asyncgrpo.launch.processes.spec import ProcessSpec
from asyncgrpo.launch.processes.supervisor import Interrupted, ProcessEnded, Supervisor
from asyncgrpo.metrics.sinks import EventLog

SLEEP = "import time; print('up', flush=True); time.sleep(600)"

# Ignores SIGTERM, with a child in its own session that ignores it too.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(f"child {process.pid}", flush=True)
time.sleep(600)
"""

# Ends at once and leaves a child behind.
ABANDON = """
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"child {process.pid}", flush=True)
"""


def python(name: str, source: str, *needs: str) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", source), needs=needs)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


async def printed(process: Process, pattern: str) -> str:
    await asyncio.to_thread(until, lambda: re.search(pattern, process.log.read_text()), within_s=60)
    found = re.search(pattern, process.log.read_text())
    assert found is not None
    return found.group(1) if found.groups() else found.group()


@asynccontextmanager
async def supervised(folder: Path, *, grace_s: float = 30.0):
    supervisor = Supervisor(
        folder, EventLog(folder / "events.jsonl"), Interrupts(), grace_s=grace_s
    )
    try:
        yield supervisor
    finally:
        supervisor.interrupts.now.set()
        await supervisor.stop()


async def test_the_first_process_to_end_is_named_with_its_status(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        server = await supervisor.start(python("server-0", SLEEP))
        await supervisor.start(python("worker", "raise SystemExit(3)", "server-0"))
        with pytest.raises(ProcessEnded) as ended:
            await supervisor.while_alive(asyncio.sleep(600))
        assert ended.value.exit == Exit("worker", 3)
        assert str(ended.value) == "worker exited with status 3"
        assert server.running


async def test_of_two_that_ended_before_anybody_looked_the_first_is_named(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        late = await supervisor.start(python("worker", SLEEP))
        first = await supervisor.start(python("trainer", "raise SystemExit(3)"))
        await first.exited
        os.kill(late.pid, signal.SIGTERM)
        await late.exited
        with pytest.raises(ProcessEnded, match="trainer exited with status 3"):
            await supervisor.while_alive(asyncio.sleep(600))


async def test_a_killed_process_is_told_by_its_signal(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        await supervisor.start(python("trainer", source))
        with pytest.raises(ProcessEnded, match="trainer was ended by SIGKILL"):
            await supervisor.while_alive(asyncio.sleep(600))


async def test_a_program_that_is_not_there_is_told_in_its_log(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        process = await supervisor.start(ProcessSpec("server-0", ("/no/such/program",)))
        assert (await process.exited).code == 127
        assert "cannot start /no/such/program" in process.log.read_text()


async def test_work_that_ends_first_gives_its_result(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        await supervisor.start(python("worker", SLEEP))
        assert await supervisor.while_alive(asyncio.sleep(0.01, "done")) == "done"


async def test_processes_stop_in_reverse_and_events_tell_it(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        for name in ("server-0", "worker", "trainer"):
            await printed(await supervisor.start(python(name, SLEEP)), "up")
        await supervisor.stop()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [e["name"] for e in events if e["event"] == "process_started"] == [
        "server-0",
        "worker",
        "trainer",
    ]
    ended = [(e["name"], e["code"]) for e in events if e["event"] == "process_ended"]
    assert ended == [(name, -signal.SIGTERM) for name in ("trainer", "worker", "server-0")]


async def test_who_ignores_sigterm_is_killed_after_the_grace_with_all_below_it(tmp_path: Path):
    async with supervised(tmp_path, grace_s=0.5) as supervisor:
        process = await supervisor.start(python("server-0", STUBBORN))
        child = int(await printed(process, r"child (\d+)"))
        began = time.monotonic()
        await supervisor.stop()
        assert time.monotonic() - began >= 0.5
        assert process.exited.result().code == -signal.SIGKILL
        assert not alive(child)


async def test_what_a_process_leaves_behind_is_ended(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        process = await supervisor.start(python("server-0", ABANDON))
        child = int(await printed(process, r"child (\d+)"))
        assert (await process.exited).code == 0
        assert not alive(child)


async def test_the_first_interrupt_ends_the_work_and_the_second_the_grace(tmp_path: Path):
    async with supervised(tmp_path, grace_s=60) as supervisor:
        process = await supervisor.start(python("server-0", STUBBORN))
        child = int(await printed(process, r"child (\d+)"))
        supervisor.interrupts.receive(signal.SIGINT)
        with pytest.raises(Interrupted):
            await supervisor.while_alive(asyncio.sleep(600))
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(0.2)
        assert process.running  # it has 60 s
        supervisor.interrupts.receive(signal.SIGINT)
        async with asyncio.timeout(120):
            await stopping
        assert not alive(child)


async def test_a_killed_guard_takes_its_program_with_it(tmp_path: Path):
    async with supervised(tmp_path) as supervisor:
        process = await supervisor.start(
            python(
                "worker", "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
            )
        )
        program = int(await printed(process, r"pid (\d+)"))
        os.kill(process.pid, signal.SIGKILL)
        assert (await process.exited).code == -signal.SIGKILL
        await asyncio.to_thread(until, lambda: not alive(program), within_s=60)


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from asyncgrpo.launch.processes.guard import descendants
from asyncgrpo.launch.processes.interrupts import Interrupts
from asyncgrpo.launch.processes.spec import ProcessSpec
from asyncgrpo.launch.processes.supervisor import Supervisor
from asyncgrpo.metrics.sinks import EventLog

async def main(folder, sources):
    supervisor = Supervisor(folder, EventLog(folder / "events.jsonl"), Interrupts(), grace_s=30)
    for number, source in enumerate(sources):
        await supervisor.start(ProcessSpec(f"p{number}", (sys.executable, "-c", source)))
    print("started", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
"""


def test_kill_9_of_the_launcher_leaves_nobody_within_15_s(tmp_path: Path):
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), SLEEP, STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "started\n"
        until(lambda: "up" in (tmp_path / "p0.log").read_text(), within_s=60)
        until(lambda: "child" in (tmp_path / "p1.log").read_text(), within_s=60)
        started = (tmp_path / "events.jsonl").read_text().splitlines()
        guards = [json.loads(line)["pid"] for line in started]
        everybody = [pid for guard in guards for pid in family(guard)]
        assert len(everybody) == 5  # two guards, two programs, one grandchild
        launcher.kill()
    until(lambda: not any(map(alive, everybody)), within_s=15)


def family(pid: int) -> list[int]:
    return [pid, *descendants(pid)]
