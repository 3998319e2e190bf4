"""A whole attempt, with a fake server and tiny processes as worker and trainer."""

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncgrpo.config import load_recipe, load_resolved
from asyncgrpo.errors import RunError, ServerError
from asyncgrpo.launch.account import account
from asyncgrpo.launch.attempt import Attempt, Ending
from asyncgrpo.launch.prepare import prepare
from asyncgrpo.launch.processes import server_lease
from asyncgrpo.launch.processes.spec import ProcessSpec
from asyncgrpo.launch.run_dir import RunDirectory, create
from asyncgrpo.launch.view.view import LineView
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.lease import Claim
from tests.fake_vllm import FakeServer

GOES = "print('nothing left to generate')"  # a worker may end before the trainer
# Stands in for the trainer: a record per step until it is asked to stop, then a checkpoint's event.
TRAINER = """
import json, sys, time
from pathlib import Path
from asyncgrpo.channel.messages import StopRequested
from asyncgrpo.channel.sockets import TrainerLink
run = Path(sys.argv[1])
link = TrainerLink(run)
for step in range(1, 2000):
    with (run / "metrics.jsonl").open("a") as file:
        line = {"step": step, "time": time.time(), "policy_version": step, "reward": 0.5}
        file.write(json.dumps(line) + "\\n")
    got = link.receive(0.05)
    if got is not None and isinstance(got[1], StopRequested):
        print("checkpointed", flush=True)
        break
link.close()
"""
# Asked to stop, it goes on and on.
BUSY_TRAINER = TRAINER.replace("        break\n", "")


class TinyAttempt:
    """An attempt of tiny processes, against a fake server."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        worker: str | dict[str, str],
        trainer: str,
        overrides: list[str],
    ):
        recipe = folder / "recipe.yaml"
        recipe.write_text(
            "model: {name_or_path: fake}\ndata: {path: org/prompts}\n"
            "rollout: {max_completion_length: 64}\nserver: {max_model_len: 512}\n"
        )
        settings = [
            f"server.urls=[{url}]",
            f"run.dir={folder / 'run'}",
            "rollout.rewards=[json:loads]",
        ]
        prepared = prepare(load_recipe(recipe, [*settings, *overrides]))
        self.run: RunDirectory = create(folder / "run")
        self.output = io.StringIO()
        workers = worker if isinstance(worker, dict) else {"worker": worker}
        sources = workers | {"trainer": trainer}

        def plan(_config, _machine, run_dir: Path, _checkpoint) -> list[ProcessSpec]:
            return [
                ProcessSpec(name, (sys.executable, "-c", source, str(run_dir)))
                for name, source in sources.items()
            ]

        self.attempt = Attempt(prepared, self.run, LineView(self.output), plan=plan)

    async def train(self, *at: tuple[int | Callable[[], bool], Callable[[], None]]) -> Ending:
        """Run it; call each `act` at its step, or once its condition holds."""
        async with asyncio.timeout(180):
            training = asyncio.create_task(self.attempt.train())
            for when, act in at:
                while not training.done() and not self._holds(when):  # noqa: ASYNC110  # files
                    await asyncio.sleep(0.05)
                if not training.done():
                    act()
            return await training

    def _holds(self, when: int | Callable[[], bool]) -> bool:
        return when() if callable(when) else self.steps() >= when

    def logged(self, name: str) -> str:
        log = self.run.logs / "latest" / f"{name}.log"
        return log.read_text() if log.exists() else ""

    def steps(self) -> int:
        return len(self.run.metrics.read_text().splitlines()) if self.run.metrics.exists() else 0

    @property
    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.run.events.read_text().splitlines()]


@pytest.fixture
def fake():
    with FakeServer() as server:
        yield server


@pytest.fixture
def attempt(tmp_path: Path, fake: FakeServer):
    def make(
        *overrides: str, worker: str | dict[str, str] = GOES, trainer: str = TRAINER
    ) -> TinyAttempt:
        return TinyAttempt(
            tmp_path, fake.url, worker=worker, trainer=trainer, overrides=list(overrides)
        )

    return make


def interrupt(number: signal.Signals = signal.SIGINT) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


async def test_a_trainer_that_ends_well_ends_the_run(attempt, fake):
    a = attempt(worker="print('bye')", trainer="print('done')")
    assert await a.train() is Ending.FINISHED
    assert load_resolved(a.run.path).server.urls == (fake.url,)
    ended = [e["name"] for e in a.events if e["event"] == "process_ended"]
    assert sorted(ended) == ["trainer", "worker"]
    assert a.events[-1]["outcome"] == "finished"


async def test_each_step_is_a_line(attempt):
    a = attempt()
    await a.train((2, interrupt()))
    assert "step 1  reward 0.500" in a.output.getvalue()


async def test_a_view_that_fails_does_not_end_the_run(attempt, caplog):
    a = attempt(worker="print()", trainer=TRAINER.replace("2000", "4"))

    def show(_progress):
        raise OSError("the terminal is gone")

    a.attempt.view.show = show
    assert await a.train() is Ending.FINISHED
    assert caplog.text.count("progress is not shown any more") == 1


async def test_the_first_process_to_fail_is_named_with_its_last_words(attempt):
    a = attempt(worker="import sys; sys.exit('error: row 3 has no prompt')")
    with pytest.raises(RunError) as error:
        await a.train()
    text = str(error.value)
    assert "worker exited with status 1" in text
    assert "error: row 3 has no prompt" in text
    assert str(a.run.path / "logs" / "attempt-001" / "worker.log") in text
    assert not any(p.running for p in a.attempt._supervisor.processes)
    crash = a.run.crash
    assert "row 3 has no prompt" in (crash / "worker.log").read_text()
    assert "trainer: running" in (crash / "summary.txt").read_text()
    assert (crash / "config.json").is_file()
    assert a.events[-1]["outcome"] == "failed"


async def test_one_of_several_workers_that_is_killed_ends_the_run_by_its_name(attempt):
    killed = "import os, signal, time; time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    workers = {"worker-0": "import time; time.sleep(600)", "worker-1": killed}
    a = attempt("rollout.workers=2", worker=workers)
    with pytest.raises(RunError, match=r"worker-1 .*SIGKILL") as error:
        await a.train()
    assert "worker-1.log" in str(error.value)
    assert not any(p.running for p in a.attempt._supervisor.processes)


async def test_a_run_ends_when_all_its_workers_have_closed(attempt):
    slow = "import time; time.sleep(2); print('closed', flush=True)"
    a = attempt("rollout.workers=2", worker={"worker-0": GOES, "worker-1": slow}, trainer=GOES)
    assert await a.train() is Ending.FINISHED
    assert "closed" in (a.run.logs / "latest" / "worker-1.log").read_text()
    assert "2 workers and trainer start" in a.output.getvalue()


async def test_a_worker_that_dies_after_one_that_failed_is_not_blamed(attempt):
    trainer = "import sys; sys.exit('error: disk full')"
    worker = (  # once the launcher has noticed that the trainer is gone
        "import signal, sys, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "events = Path(sys.argv[1]) / 'events.jsonl'\n"
        # in two parts: the event of its own start holds this source
        "while 'process_' + 'ended' not in events.read_text(): time.sleep(0.05)\n"
        "raise SystemExit(1)"
    )
    a = attempt(worker=worker, trainer=trainer)
    with pytest.raises(RunError, match="trainer exited with status 1"):
        await a.train()


async def test_a_crash_bundle_holds_the_stacks_of_who_was_still_running(attempt):
    source = (
        "import faulthandler, signal, time\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        "def waiting_for_the_trainer(): time.sleep(600)\n"
        "print('up', flush=True); waiting_for_the_trainer()"
    )
    trainer = (
        "import sys, time\nfrom pathlib import Path\n"
        "log = Path(sys.argv[1]) / 'logs' / 'latest' / 'worker.log'\n"
        "while 'up' not in log.read_text(): time.sleep(0.05)\n"
        "raise SystemExit(1)"
    )
    a = attempt(worker=source, trainer=trainer)
    with pytest.raises(RunError):
        await a.train()
    assert "waiting_for_the_trainer" in (a.run.crash / "worker.log").read_text()


async def test_ctrl_c_once_lets_the_trainer_checkpoint_and_is_a_success(attempt):
    a = attempt()
    assert await a.train((3, interrupt())) is Ending.STOPPED
    assert "checkpointed" in (a.run.logs / "latest" / "trainer.log").read_text()
    assert "finishing the step" in a.output.getvalue()
    assert f"asyncgrpo resume {a.run.path}" in account(a.run, Ending.STOPPED)


async def test_a_trainer_that_still_loads_is_asked_again(attempt):
    loads = "import time; print('loads', flush=True); time.sleep(4)\n"
    a = attempt(trainer=loads + TRAINER)
    assert await a.train((lambda: "loads" in a.logged("trainer"), interrupt())) is Ending.STOPPED
    assert "checkpointed" in (a.run.logs / "latest" / "trainer.log").read_text()


async def test_ctrl_c_twice_stops_now(attempt):
    a = attempt(trainer=BUSY_TRAINER)
    assert await a.train((3, interrupt()), (6, interrupt())) is Ending.CUT_SHORT
    assert not any(p.running for p in a.attempt._supervisor.processes)


async def test_sigterm_waits_no_longer_than_the_grace(attempt):
    a = attempt("run.grace_s=0.5", trainer=BUSY_TRAINER)
    assert await a.train((3, interrupt(signal.SIGTERM))) is Ending.CUT_SHORT


async def test_ctrl_c_while_a_server_starts_loses_nothing(attempt, fake):
    fake.state.dead = True  # /health does not answer 200
    a = attempt()

    def waits() -> bool:
        return f"waiting for {fake.url}" in a.output.getvalue()

    assert await a.train((waits, interrupt())) is Ending.STOPPED
    assert not a.run.config.exists()
    assert f"rm -r {a.run.path}" in account(a.run, Ending.STOPPED)  # there is nothing to resume


async def test_a_server_that_does_not_fit_is_told_before_anything_starts(attempt, fake):
    fake.state.model = "other"
    a = attempt()
    with pytest.raises(ServerError, match="serves other, not fake"):
        await a.train()
    assert not [e for e in a.events if e["event"] == "process_started"]


async def test_the_end_says_the_rewards_way_where_it_is_and_what_next(attempt):
    a = attempt(worker="print()", trainer=TRAINER.replace("2000", "4"))
    text = account(a.run, await a.train())
    assert "finished, at step 3" in text
    assert "reward 0.500 -> 0.500" in text
    assert f"asyncgrpo diagnose {a.run.path}" in text


async def test_a_server_that_takes_no_adapter_gets_merged_weights_and_the_user_is_told(
    attempt, fake
):
    fake.state.enable_lora = False
    a = attempt("model.peft={r: 4}", trainer="print('done')")
    assert await a.train() is Ending.FINISHED
    assert load_resolved(a.run.path).sync.backend == "folder"
    assert "warning: the adapter is published merged into whole weights" in a.output.getvalue()
    assert "vLLM serves no LoRA adapters: start it with --enable-lora" in a.output.getvalue()


async def test_a_server_that_another_run_trains_with_is_refused_untouched(
    attempt, fake, monkeypatch
):
    monkeypatch.setattr(server_lease, "ASK_AGAIN_S", 0.0)
    fake.state.paused = True  # as while the other run publishes
    async with ServerClient(fake.url) as other:

        async def renew():
            while True:
                await other.claim(Claim("other", "demo in /runs/demo"))

        renewing = asyncio.create_task(renew())
        with pytest.raises(ServerError, match="in use: the run demo in /runs/demo trains with it"):
            await attempt().train()
        renewing.cancel()
    assert fake.state.paused
    assert fake.state.calls == []


async def test_the_lease_is_given_back_at_the_end(attempt, fake):
    a = attempt(trainer="print('done')")
    assert await a.train() is Ending.FINISHED
    async with ServerClient(fake.url) as other:
        assert (await other.claim(Claim("next", "next"))).owner == "next"
