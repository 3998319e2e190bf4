"""Programs run side by side up to a bound, and leave nothing behind, however they end."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox import confine, landlock
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.programs import Sandbox

confined = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")


@pytest.fixture
async def sandbox():
    made = Sandbox()
    yield made
    made.close()


SLEEPS = "import time\ntime.sleep(600)"
ENDLESS = SandboxLimits(seconds=600.0)


def programs(sandbox):
    """The programs that run; a check that has answered may be there a moment longer."""
    found = []
    if sandbox._launcher is not None:
        for check in psutil.Process(sandbox._launcher.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += check.children()
    return found


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for cannot notify
            await asyncio.sleep(0.05)


async def running(sandbox):
    """Wait for one program; its process and that of its check."""
    await until(lambda: programs(sandbox))
    (program,) = programs(sandbox)
    return [program, program.parent()]


@confined
async def test_nothing_is_left_behind_when_a_check_is_cancelled(sandbox):
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    task = asyncio.ensure_future(sandbox.run(SLEEPS, [""], ENDLESS))
    await running(sandbox)
    launcher = sandbox._launcher.pid
    task.cancel()

    def nothing_is_left() -> bool:
        now = {p.pid for p in psutil.Process().children(recursive=True)}
        return now <= before | {launcher} and not list(Path(sandbox._launcher.folder).iterdir())

    await until(nothing_is_left)


@confined
async def test_nothing_is_left_behind_when_the_launcher_is_killed(sandbox):
    task = asyncio.ensure_future(sandbox.run(SLEEPS, [""], ENDLESS))
    started = await running(sandbox)
    psutil.Process(sandbox._launcher.pid).kill()
    with pytest.raises(Exception, match="a check was lost"):
        await task
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    (following,) = await sandbox.run("print('next', 1)", [""], ENDLESS)
    assert following.status == "ok"


WORKER = """
import asyncio
import psutil
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.programs import Sandbox

async def main():
    sandbox = Sandbox()
    running = sandbox.run("import time; time.sleep(600)", [""], SandboxLimits(seconds=600.0))
    task = asyncio.ensure_future(running)
    while len(psutil.Process().children(recursive=True)) < 3:
        await asyncio.sleep(0.05)
    print(sandbox._launcher.folder, flush=True)
    await task

asyncio.run(main())
"""


@confined
def test_nothing_is_left_behind_when_the_worker_is_killed():
    worker = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    root = Path(worker.stdout.readline().strip())
    started = psutil.Process(worker.pid).children(recursive=True)
    assert len(started) == 3  # the launcher, the check, the program
    assert root.is_dir()
    worker.kill()
    worker.communicate()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not root.exists()


@confined
async def test_checks_run_side_by_side_up_to_the_bound():
    sandbox = Sandbox(at_once=2)
    most, seen = 0, set()
    tasks = [asyncio.ensure_future(sandbox.run(SLEEPS, [""], ENDLESS)) for _ in range(5)]

    def two_run():
        nonlocal most
        running = {program.pid for program in programs(sandbox)}
        most = max(most, len(running))
        seen.update(running)
        return len(running) == 2

    for task in tasks[:3]:  # one more comes for each that ends
        await until(two_run)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: two_run() and len(seen) == 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sandbox.close()
    assert most == 2


@confined
async def test_jobs_that_come_together_share_one_launcher():
    before = {p.pid for p in psutil.Process().children()}
    sandbox = Sandbox(at_once=8)
    await asyncio.gather(*(sandbox.run("", [""], ENDLESS) for _ in range(8)))
    started = {p.pid for p in psutil.Process().children()} - before
    assert started == {sandbox._launcher.pid}
    sandbox.close()


async def test_a_machine_that_cannot_confine_is_named(monkeypatch):
    monkeypatch.setattr(confine.landlock, "version", lambda: 0)
    with pytest.raises(HookError, match=r"no Landlock .*without_landlock"):
        await Sandbox().run("1", [""], SandboxLimits())
