"""One attempt of a run, from the first process to the last.

servers --ready, checked--> final config.json --> workers --> trainer --exit 0--> all stopped

a process fails       RunError: its name, its exit, its last log lines; crash/ has the rest
Ctrl-C, SIGTERM       the trainer finishes its step and checkpoints; twice: stop now
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from asyncgrpo.channel.sockets import request_stop
from asyncgrpo.config import Config, known, write_resolved
from asyncgrpo.errors import ConfigError, RunError
from asyncgrpo.launch.plan import (
    ANY_ADDRESS,
    LOOPBACK,
    Machine,
    plan_servers,
    plan_training,
    worker_shares,
)
from asyncgrpo.launch.prepare import Prepared
from asyncgrpo.launch.processes import crash, logs
from asyncgrpo.launch.processes.interrupts import Interrupts
from asyncgrpo.launch.processes.process import Exit, Process
from asyncgrpo.launch.processes.readiness import (
    ClaimServer,
    require,
    wait_for_servers,
)
from asyncgrpo.launch.processes.server_lease import ServerLease
from asyncgrpo.launch.processes.spec import ProcessSpec
from asyncgrpo.launch.processes.supervisor import Interrupted, ProcessEnded, Supervisor, in_order
from asyncgrpo.launch.run_dir import RunDirectory
from asyncgrpo.launch.view.follow import Follower
from asyncgrpo.launch.view.view import View
from asyncgrpo.metrics.sinks import EventLog
from asyncgrpo.server.capabilities import served_facts
from asyncgrpo.server.client import configured_client

PlanTraining = Callable[[Config, Machine, Path, int | None], Sequence[ProcessSpec]]

OTHERS_FAIL_S = 1.0  # one failure makes others fail; after this time all have logged theirs
ASK_AGAIN_S = 2.0  # a request is lost if it comes before the trainer listens
WORKERS_CLOSE_S = 10.0  # workers close in less time once asked to stop
KILLED = "SIGKILL comes from outside: from a person, or from a kernel that runs out of memory"
TRAINER = "trainer"


class Ending(StrEnum):
    """The end of an attempt that did not fail."""

    FINISHED = "finished"
    STOPPED = "stopped"  # the user asked, and nothing is lost
    CUT_SHORT = "cut short"  # the user asked twice, or the grace was over


class Attempt:
    """The processes of one attempt, and their progress on a view."""

    def __init__(
        self,
        prepared: Prepared,
        run: RunDirectory,
        view: View,
        *,
        lock: int | None = None,
        checkpoint: int | None = None,
        plan: PlanTraining = plan_training,
    ) -> None:
        self.prepared = prepared
        self.run = run
        self.view = view
        self._checkpoint = checkpoint
        self._plan = plan
        self._logs = run.new_attempt()
        self._events = EventLog(run.events)
        self._interrupts = Interrupts()
        self._supervisor = Supervisor(
            self._logs,
            self._events,
            self._interrupts,
            grace_s=prepared.config.run.grace_s,
            lock=lock,
        )

    async def train(self) -> Ending:
        """Run to the end.

        Raises a UserError where a process fails, or a server does not meet the configuration.
        """
        self._events.write("attempt_started", logs=str(self._logs))
        ending: Ending | None = None
        try:
            async with self._supervised():
                ending = await self._train()
            return ending
        finally:
            self._events.write("attempt_ended", outcome=ending or "failed")

    async def serve(self) -> None:
        """Run the servers alone until the user stops them."""
        async with self._supervised():
            with contextlib.suppress(Interrupted):
                await self._start_servers()
                self.view.close()  # no steps to show: training runs elsewhere
                self.view.say(serving(self.prepared.config))
                await self._supervisor.while_alive(asyncio.Event().wait())

    async def _train(self) -> Ending:
        name = f"{known(self.config.run.name)} in {self.run.path}"
        connect = partial(configured_client, self.config)
        async with ServerLease(name, connect, self._warn) as lease:
            return await self._train_with(lease)

    async def _train_with(self, lease: ServerLease) -> Ending:
        try:
            await self._start_servers(lease.claim)
            self._write_config()
            count = self.config.rollout.workers
            workers = "worker" if count == 1 else f"{count} workers"
            self.view.say(f"{workers} and trainer start; Ctrl-C saves a checkpoint and stops")
            for spec in self._plan(
                self.config, self.prepared.machine, self.run.path, self._checkpoint
            ):
                await self._supervisor.start(spec)
        except Interrupted:
            return Ending.STOPPED
        async with Follower(self.run, self.config, self.view):
            ending = await self._until_trained()
            if ending is not Ending.CUT_SHORT:
                await self._wait_for_workers()
            return ending

    @property
    def config(self) -> Config:
        """The configuration as derived so far."""
        return self.prepared.config

    async def _start_servers(self, claim: ClaimServer | None = None) -> None:
        """Start the servers and wait for them; then the configuration is final."""
        processes: dict[str, Process] = {}
        urls = known(self.config.server.urls)
        if self.prepared.launches_servers:
            specs = plan_servers(self.config, self.prepared.machine)
            for url, spec in zip(urls, specs, strict=True):
                processes[url] = await self._supervisor.start(spec)
                self.view.say(f"{spec.name} starts, which takes a minute or more")
                self.view.say(f"its log is {self._logs / spec.log_name}")
        else:
            self.view.say(f"waiting for {', '.join(urls)}")
        found = await self._supervisor.while_alive(
            wait_for_servers(self.config, urls, processes, on_wait=self.view.waiting, claim=claim)
        )
        self.prepared = self.prepared.with_served(served_facts(found, self.config))
        if self.prepared.facts.adapters_refused and known(self.config.sync.backend) == "folder":
            self._warn(
                "the adapter is published merged into whole weights, which pauses generation: "
                f"{self.prepared.facts.adapters_refused}"
            )
        require(found, self.config, self._warn)
        self.view.say(f"serving {self.config.model.name_or_path} at {', '.join(urls)}")

    def _write_config(self) -> None:
        config, derived = self.prepared.derivation
        write_resolved(self.run.config, config, derived)

    async def _until_trained(self) -> Ending:
        """Wait for the trainer; raises ProcessEnded when another process ends badly first."""
        trainer = self._process(TRAINER)
        try:
            but = (TRAINER, *(worker.spec.name for worker in self._workers))
            await self._supervisor.while_alive(self._trainer_end(trainer), but=but)
        except Interrupted:
            return await self._finish(trainer)
        return Ending.FINISHED

    async def _trainer_end(self, trainer: Process) -> None:
        """Return when the trainer has ended well; workers may end well before it."""
        waiting = {trainer.exited, *(worker.exited for worker in self._workers)}
        while trainer.exited in waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for exit_ in in_order(done):
                if exit_.failed:
                    raise ProcessEnded(exit_)
                if exit_.name == TRAINER:
                    return  # the run is over: whatever ends after it is no failure of it

    async def _wait_for_workers(self) -> None:
        """Wait until the workers have closed: their last events belong to the run.

        The trainer has told them to stop.
        """
        closing = asyncio.ensure_future(asyncio.wait({worker.exited for worker in self._workers}))
        now = asyncio.create_task(self._interrupts.now.wait())
        await asyncio.wait(
            {closing, now}, timeout=WORKERS_CLOSE_S, return_when=asyncio.FIRST_COMPLETED
        )
        closing.cancel()
        now.cancel()

    async def _finish(self, trainer: Process) -> Ending:
        """Let the trainer finish its step and checkpoint, as the user asked to stop."""
        hurried = self._interrupts.in_a_hurry
        limit = self.config.run.grace_s if hurried else None
        self.view.say(
            "finishing the step and saving a checkpoint"
            + (f", {limit:.0f} s at most" if limit else "; Ctrl-C again stops now")
        )
        now = asyncio.create_task(self._interrupts.now.wait())
        end = asyncio.create_task(self._trainer_end(trainer))
        asking = asyncio.create_task(self._keep_asking())
        waited = (now, end, asking)
        done, _ = await asyncio.wait(waited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in waited:
            task.cancel()
        if end in done:
            end.result()
            return Ending.STOPPED
        if asking in done:
            asking.result()
        self._interrupts.now.set()
        return Ending.CUT_SHORT

    async def _keep_asking(self) -> None:
        """Repeat the request to stop: a trainer that still loads does not listen yet."""
        while True:
            await asyncio.to_thread(request_stop, self.run.path)
            await asyncio.sleep(ASK_AGAIN_S)

    @contextlib.asynccontextmanager
    async def _supervised(self) -> AsyncGenerator[None]:
        """Stop every process when the block ends; a failed one becomes a RunError."""
        with self._interrupts.installed():
            try:
                yield
            except ProcessEnded as ended:
                raise await self._failure(ended.exit) from None
            finally:
                await self._supervisor.stop()
                self.view.close()

    async def _failure(self, first: Exit) -> RunError:
        """The error for the process that failed first; also writes the crash bundle."""
        await asyncio.sleep(OTHERS_FAIL_S)
        processes = self._supervisor.processes
        await crash.request_stacks(processes)
        process = self._process(first.name)
        words = logs.failure(logs.tail(process.log)) or ["(it logged nothing)"]
        summary = "\n".join([f"{first}; its last words:", *(f"    {line}" for line in words)])
        if "SIGKILL" in f"{first} {words[-1]}":
            summary += f"\n{KILLED}"
        states = [
            f"    {p.spec.name}: {'running' if p.running else p.exited.result()}" for p in processes
        ]
        bundle = crash.write_bundle(self.run, processes, "\n".join([summary, "", *states]))
        self._events.write("failed", name=first.name, code=first.code)
        return RunError(f"{summary}\nlog {process.log}\ncrash bundle {bundle}")

    @property
    def _workers(self) -> list[Process]:
        return [self._process(share.name) for share in worker_shares(self.config)]

    def _process(self, name: str) -> Process:
        return next(p for p in self._supervisor.processes if p.spec.name == name)

    def _warn(self, message: str) -> None:
        self._events.write("warning", message=message)
        self.view.say(f"warning: {message}")


def serving(config: Config) -> str:
    """The lines to use these servers from another terminal or machine."""
    urls = known(config.server.urls)
    if config.server.host in ANY_ADDRESS:
        urls = tuple(url.replace(LOOPBACK, socket.gethostname()) for url in urls)
    listed = ",".join(urls)
    return "\n".join(
        [
            *(f"ready at {url}" for url in urls),
            f"use it with: asyncgrpo train RECIPE 'server.urls=[{listed}]'",
            "Ctrl-C stops it",
        ]
    )


def serving_directory(config: Config) -> Path:
    """The folder for the logs of `serve`, which has no run directory."""
    folder = Path(f"{known(config.run.dir)}-serve")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"run.dir: {folder} is a file, expected a directory for the logs")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
