"""The loops of a worker between the trainer's Begin and its Stop.

    Generation --finished groups--> ScoringLoop --GroupReady, PromptDropped--> trainer
        ^ wake                          |
        +--- messages (Published, Progress, Stop), server load every 5 s -----+

`run` returns after Stop; the first loop that fails ends all others.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from typing import Protocol

from asyncgrpo.channel.messages import (
    Begin,
    EpochEmpty,
    Exhausted,
    Measured,
    Progress,
    PromptDropped,
    Published,
    Stop,
    ToTrainer,
    ToWorker,
)
from asyncgrpo.channel.ordinals import wanted_ordinals
from asyncgrpo.config import known
from asyncgrpo.errors import ServerError
from asyncgrpo.ledger.failure_budget import FailureBudget
from asyncgrpo.metrics.sinks import EventLog
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rollout.generation import Generation
from asyncgrpo.rollout.inputs import Inputs, make_loop
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import POLL_S, ConcurrencyCap, kv_cache_rollouts
from asyncgrpo.rollout.limits.heartbeats import Heartbeats
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.observe import observe_load
from asyncgrpo.rollout.one_rollout import RolloutRunner
from asyncgrpo.rollout.open_group import FinishedGroup, GroupOutcome
from asyncgrpo.rollout.opening import Opening
from asyncgrpo.rollout.sampling.policy import CurrentPolicy, PolicyName
from asyncgrpo.rollout.sampling.sampler import Sampler, TurnClient
from asyncgrpo.rollout.scoring_loop import GROUPS_AT_ONCE, QUEUE_GROUPS, ScoringLoop
from asyncgrpo.server.load import ServerLoad

log = logging.getLogger(__name__)

REPORT_S = 1.0
LOAD_TIMEOUT_S = 10.0  # a server too busy to say how busy it is
CLOSE_TIMEOUT_S = 10.0


class Link(Protocol):
    """The part of `WorkerLink` that is used here."""

    async def send(self, message: ToTrainer) -> None: ...
    async def receive(self) -> ToWorker: ...


class Client(TurnClient, Protocol):
    """The part of `ServerClient` that is used here."""

    async def load(self) -> ServerLoad: ...


class WorkerLoops:
    """The state and the loops of a worker that has its Begin."""

    def __init__(
        self,
        inputs: Inputs,
        begin: Begin,
        link: Link,
        client: Client,
        recorder: Recorder,
        *,
        events: EventLog | None = None,
    ) -> None:
        config, share = inputs.config, inputs.share
        self._share = share
        self._starts_over = inputs.prompts.starts_over and bool(begin.resolved)
        self._begin = begin
        self._link = link
        self._client = client
        self._recorder = recorder
        self._events = events
        self._max_model_len = known(config.server.max_model_len)
        self._heartbeats = Heartbeats()
        self._stopped = asyncio.Event()
        self._preemptions: int | None = None
        self._cap_started = False
        self._policy = CurrentPolicy(PolicyName(begin.policy, begin.policy_version))
        self._limits = Limits(
            admission=Admission(begin.allowance_tokens),
            cap=ConcurrencyCap(share.of(config.rollout.max_concurrent_rollouts)),
            rollout_failures=FailureBudget(config.rollout.failure_budget),
            scoring_failures=FailureBudget(
                config.rollout.failure_budget, failed="groups could not be scored"
            ),
        )
        self._finished: asyncio.Queue[FinishedGroup] = asyncio.Queue(QUEUE_GROUPS)
        sampler = Sampler(config, client, self._policy, on_retry=lambda: count_retry(recorder))
        self._loop = make_loop(inputs, sampler)
        self._generation = self._make_generation(inputs, sampler)
        self._scoring = ScoringLoop(
            loop=self._loop,
            rewards=inputs.rewards,
            limits=self._limits,
            recorder=recorder,
            finished=self._finished,
            emit=self._emit,
            wake=self._generation.wake,
            warn=self._warn,
        )

    def _make_generation(self, inputs: Inputs, sampler: Sampler) -> Generation:
        opening = Opening(
            inputs,
            loop=self._loop,
            sampler=sampler,
            policy=self._policy,
            limits=self._limits,
            heartbeats=self._heartbeats,
            tell=self._emit,
        )
        return Generation(
            opening=opening,
            runner=RolloutRunner(inputs, self._loop, self._recorder),
            limits=self._limits,
            recorder=self._recorder,
            heartbeats=self._heartbeats,
            finished=self._finished,
            tell=self._emit,
        )

    async def run(self) -> None:
        """Works until the trainer's Stop.

        Raises:
            UserError: the run cannot go on.
            ExceptionGroup: of such.
        """
        if self._starts_over:
            self._warn(
                "data.streaming: a stream cannot be repositioned, so this resumed run reads it "
                "from its beginning: prompts that were trained come up again"
            )
        await self._poll_load()
        try:
            await self._set_up()
            async with asyncio.TaskGroup() as tasks:
                loops = [
                    tasks.create_task(self._receive()),
                    tasks.create_task(self._watch_load()),
                    tasks.create_task(self._report()),
                    tasks.create_task(self._generate()),
                    *(tasks.create_task(self._scoring.run()) for _ in range(GROUPS_AT_ONCE)),
                ]
                await self._stopped.wait()
                for loop in loops:
                    loop.cancel()
        finally:
            await self._close()

    async def _set_up(self) -> None:
        try:
            await self._loop.setup()
        except Exception as error:
            raise hook_error(f"{type(self._loop).__name__}.setup raised", error) from error

    async def _close(self) -> None:
        """Closes the user's loop; its failure is logged, and does not fail the run."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._loop.close()
        except Exception:
            log.exception("%s.close failed", type(self._loop).__name__)

    async def _receive(self) -> None:
        """Follows the trainer.

        takes      the trainer's messages
        gives      the policy, the allowance, the end of all loops
        waits for  the link
        woken by   a message
        """
        while not self._stopped.is_set():
            match await self._link.receive():
                case Published(policy, version):
                    self._policy.publish(PolicyName(policy, version))
                case Progress() as progress:
                    self._limits.admission.on_progress(
                        allowance_tokens=progress.allowance_tokens,
                        consumed_tokens=progress.consumed_tokens,
                    )
                    self._generation.wake()
                case Stop():
                    self._stopped.set()
                case Begin():
                    log.warning("a second Begin is ignored: this worker has begun")

    async def _generate(self) -> None:
        """Generates for all ordinals.

        takes      the ordinals of this worker's share that are not resolved
        gives      their groups, by `Generation`; then Exhausted to the trainer
        waits for  generation, then the scoring of all finished groups
        woken by   the end of both
        """
        await self._generation.run(self._ordinals())
        await self._finished.join()
        await self._send_measured()
        await self._link.send(Exhausted())

    def _ordinals(self) -> Iterator[int]:
        begin = self._begin
        wanted = wanted_ordinals(begin.first_ordinal, begin.end_ordinal, begin.resolved)
        return self._share.ordinals(wanted)

    async def _emit(self, outcome: GroupOutcome | PromptDropped | EpochEmpty) -> None:
        """Sends an outcome, after the observations that belong to it."""
        await self._send_measured()
        await self._link.send(outcome)

    async def _send_measured(self) -> None:
        aggregates = self._recorder.drain()
        if aggregates:
            await self._link.send(Measured(aggregates))

    async def _report(self) -> None:
        """Reports once a second.

        takes      measurements, heartbeats
        gives      Measured and the oldest Heartbeat to the trainer
        waits for  nothing
        woken by   the clock, every `REPORT_S`

        A worker whose launcher is gone ends here.
        """
        launcher = os.getppid()
        while os.getppid() == launcher:
            tokens, start = self._generation.generated_tokens, time.monotonic()
            await self._send_measured()
            await self._link.send(self._heartbeats.oldest())
            await asyncio.sleep(REPORT_S)
            self._record_gauges()
            made = self._generation.generated_tokens - tokens
            seconds = time.monotonic() - start
            self._recorder.record_rate(
                "rollout/generated_tokens_per_s", made, seconds * self._share.weight
            )
        log.warning("the launcher is gone: the worker ends")
        self._stopped.set()

    def _record_gauges(self) -> None:
        """Records gauges, whose sum over all workers is reported."""
        for name, value in (
            ("rollout/concurrency", self._generation.in_flight),
            ("rollout/concurrency_cap", self._limits.cap.cap),
            ("rollout/score_queue_size", self._finished.qsize()),
        ):
            self._recorder.record_rate(name, value, self._share.weight)
        self._recorder.record("rollout/vllm_retry_count", 0)  # none is an observation too

    def _warn(self, message: str) -> None:
        """Warns the user, in the log and in the events."""
        log.warning("%s", message)
        if self._events is not None:
            self._events.write("warning", message=message)

    async def _watch_load(self) -> None:
        """Follows the server's load.

        takes      the server's load
        gives      the cap on rollouts in flight; wakes generation
        waits for  the server, `LOAD_TIMEOUT_S` at most
        woken by   the clock, every `POLL_S`
        """
        while True:
            await asyncio.sleep(POLL_S)
            await self._poll_load()
            self._generation.wake()

    async def _poll_load(self) -> None:
        cap = self._limits.cap
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                load = await self._client.load()
        except (ServerError, TimeoutError, ValueError) as error:  # ValueError: no metrics page
            log.info("no load from the server, the cap stays at %d: %r", cap.cap, error)
            return
        if not self._cap_started:
            self._cap_started = True
            fits = kv_cache_rollouts(
                max_concurrency=load.kv_max_concurrency,
                cache_tokens=load.kv_tokens,
                max_model_len=self._max_model_len,
            )
            if fits is not None:
                cap.start_at(fits / self._share.count)
                log.info("%d rollouts at once: the KV cache holds %.1f", cap.cap, fits)
        cap.observe(usage_frac=load.kv_usage, waiting=load.waiting)
        if self._share.index != 0:  # it is one server: the first worker observes it for all
            return
        before = load.preemptions if self._preemptions is None else self._preemptions
        observe_load(self._recorder, load, preempted=max(load.preemptions - before, 0))
        self._preemptions = load.preemptions


def count_retry(recorder: Recorder) -> None:
    """Counts a request to the server that is tried again."""
    recorder.record("rollout/vllm_retry_count", 1)
