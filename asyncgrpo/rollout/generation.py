"""Prompts become finished groups, as many at once as the three limits allow.

takes      ordinals not yet resolved, in order
gives      finished groups to the scoring queue; dropped prompts to the trainer
waits for  the staleness allowance (per group), the cap on rollouts in flight (per rollout)
woken by   progress of the trainer, groups resolved, rollouts ended, a new cap

A failed rollout costs itself; its group goes on while two are left.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Int32

from asyncgrpo.channel.messages import DropReason, EpochEmpty, PromptDropped
from asyncgrpo.channel.shares import Share
from asyncgrpo.errors import DataError, HookError, RunError, describe_error
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.data.prompts import PromptSource
from asyncgrpo.rollout.data.row_mapping import Prompt, RowError
from asyncgrpo.rollout.data.stream import UNKNOWN_LENGTH
from asyncgrpo.rollout.hooks.threads import in_daemon_thread, was_cancelled
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import ConcurrencyCap
from asyncgrpo.rollout.limits.epoch_census import EmptyEpochError, EpochCensus
from asyncgrpo.rollout.limits.failure_budget import FailureBudget
from asyncgrpo.rollout.limits.heartbeats import Heartbeats
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.observe import num_output_tokens, observe_rollout
from asyncgrpo.rollout.observe_tools import observe_tool_calls, observe_tool_rates
from asyncgrpo.rollout.one_rollout import RolloutRunner
from asyncgrpo.rollout.open_group import LEAST_ROLLOUTS, OpenGroup
from asyncgrpo.rollout.sampling.policy import CurrentPolicy
from asyncgrpo.rollout.sampling.sampler import Sampler
from asyncgrpo.rollout.tools.environment_kind import EnvironmentKind
from asyncgrpo.rollout.tools.environments import Environments
from asyncgrpo.rollout.tools.tools import ToolFunction, schema_of

log = logging.getLogger(__name__)

HEARTBEAT = "generation"


class Generation:
    """Dispatches prompts and runs their rollouts."""

    def __init__(
        self,
        *,
        prompts: PromptSource,
        loop: AsyncRolloutLoop,
        runner: RolloutRunner,
        chat: Chat,
        tools: Sequence[ToolFunction],
        environments: Environments | None,
        sampler: Sampler,
        policy: CurrentPolicy,
        admission: Admission,
        cap: ConcurrencyCap,
        failures: FailureBudget,
        recorder: Recorder,
        heartbeats: Heartbeats,
        finished: "asyncio.Queue[OpenGroup]",
        tell: Callable[[PromptDropped | EpochEmpty], Awaitable[None]],
        share: Share,
        num_generations: int,
        seed: int,
        eos_ids: frozenset[int],
    ) -> None:
        self._prompts = prompts
        self._loop = loop
        self._runner = runner
        self._chat = chat
        self._tool_schemas = [schema_of(tool, key="rollout.tools") for tool in tools]
        self._environments = environments
        self._sampler = sampler
        self._policy = policy
        self._admission = admission
        self._cap = cap
        self._failures = failures
        self._recorder = recorder
        self._heartbeats = heartbeats
        self._finished = finished
        self._tell = tell
        self._share = share
        self._num_generations = num_generations
        self._seed = seed
        self._eos_ids = eos_ids
        self._changed = asyncio.Event()
        self._num_groups = 0
        self.in_flight = 0  # rollouts under way
        self.generated_tokens = 0  # since the start

    def wake(self) -> None:
        """Something changed that a start may have been waiting for."""
        self._changed.set()

    async def run(self, ordinals: Iterable[int]) -> None:
        """Generate for every ordinal; returns when the last group is queued for scoring.

        Raises:
            UserError: the run cannot go on.
        """
        num_prompts = len(self._prompts)
        census = EpochCensus(num_prompts if num_prompts < UNKNOWN_LENGTH else None, self._share)
        async with asyncio.TaskGroup() as rollouts:
            for ordinal in ordinals:
                await self._wait_for_allowance()
                epoch, position = divmod(ordinal, num_prompts)
                group = await self._open(epoch, position, census)
                if group is None:
                    await asyncio.sleep(0)  # a run of filtered prompts must not hold the loop
                    continue
                self._admission.start_group(self._num_generations)
                for index in range(self._num_generations):
                    await self._wait_for_slot()
                    rollouts.create_task(self._run_rollout(group, index))
            self._heartbeats.rest(HEARTBEAT)  # all is dispatched; the rollouts end by themselves

    async def _wait_for_allowance(self) -> None:
        start = time.monotonic()
        used_up = self._admission.is_used_up()
        await self._wait_until(self._admission.may_start)
        self._recorder.record("rollout/backpressure_s", (time.monotonic() - start) * used_up)

    async def _wait_for_slot(self) -> None:
        await self._wait_until(lambda: self.in_flight < self._cap.cap)
        self.in_flight += 1

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._heartbeats.beat(HEARTBEAT)
        while not condition():
            self._changed.clear()
            with self._heartbeats.resting(HEARTBEAT):
                await self._changed.wait()

    async def _open(self, epoch: int, position: int, census: EpochCensus) -> OpenGroup | None:
        """The group of a prompt; None where the prompt was dropped."""
        try:
            with self._heartbeats.resting(HEARTBEAT):  # a stream may be slow
                prompt = await self._prompts.take(seed=self._seed, epoch=epoch, position=position)
        except RowError as error:
            self.fail(self._failures, str(error))
            return await self._drop_unopened(epoch, position, DropReason.ERROR)
        census.see(prompt.epoch)
        try:
            if not self._accepts(prompt):
                await self._count_out(census, "rejected by filter_prompt")
                return await self._drop_unopened(epoch, position, DropReason.FILTERED)
            environment = self._environment(prompt)
            prompt_ids = await self._rendered(prompt, environment)
        except (DataError, HookError) as error:
            await self._count_out(census, str(error))
            self.fail(self._failures, f"row {prompt.row_index}: {error}")
            return await self._drop_unopened(epoch, position, DropReason.ERROR)
        if prompt_ids is not None and self._sampler.room_for(prompt_ids) <= 0:
            await self._count_out(census, "longer than the context (server.max_model_len)")
            self.fail(
                self._failures,
                f"row {prompt.row_index}: a prompt of {prompt_ids.size} tokens leaves no room in "
                "the context; raise server.max_model_len, or leave such rows out",
            )
            return await self._drop_unopened(epoch, position, DropReason.ERROR)
        group = OpenGroup(
            group_id=self._num_groups,
            epoch=epoch,
            position=position,
            prompt=prompt,
            prompt_ids=prompt_ids,
            model_version=self._policy.now.version,
            unfinished=self._num_generations,
            environment=environment,
        )
        self._num_groups += 1
        return group

    async def _drop_unopened(self, epoch: int, position: int, reason: DropReason) -> None:
        await self._tell(PromptDropped(epoch, position, reason))

    async def _count_out(self, census: EpochCensus, reason: str) -> None:
        """The prompt just seen is not generated for; was it the last chance of its epoch?"""
        try:
            census.drop(reason)
        except EmptyEpochError as empty:
            if self._share.alone:
                raise
            await self._tell(EpochEmpty(empty.epoch, str(empty)))

    def _environment(self, prompt: Prompt) -> EnvironmentKind | None:
        if self._environments is None:
            return None
        return self._environments.kind_of(prompt.row, f"row {prompt.row_index}")

    async def _rendered(
        self, prompt: Prompt, environment: EnvironmentKind | None
    ) -> Int32[np.ndarray, "P"] | None:
        """The tokens of the whole group's prompt; None where the environment makes it."""
        if not prompt.messages:
            return None
        schemas = [*self._tool_schemas, *(environment.schemas if environment else ())]
        return await in_daemon_thread(self._chat.render, prompt.messages, schemas)

    def _accepts(self, prompt: Prompt) -> bool:
        try:
            return bool(self._loop.filter_prompt(prompt.row_index, prompt.row, prompt.epoch))
        except Exception as error:
            hook = f"{type(self._loop).__name__}.filter_prompt"
            raise HookError(f"{hook} raised {describe_error(error)}") from error

    async def _run_rollout(self, group: OpenGroup, index: int) -> None:
        context = self._runner.context(group, index)
        start = time.monotonic()
        try:
            finished = await self._runner.run(group, context)
        except RunError:
            raise
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if was_cancelled(error):
                raise
            self._admission.lose_rollout()
            self.fail(self._failures, describe_error(error))
        else:
            group.finished.append(finished)
            rollout, drafts = finished.rollout, finished.drafts
            self._admission.finish_rollout(drafts.num_tokens)
            self._failures.succeed()
            self.generated_tokens += num_output_tokens(rollout)
            duration_s = time.monotonic() - start
            observe_rollout(
                self._recorder, rollout, drafts, duration_s=duration_s, eos_ids=self._eos_ids
            )
            observe_tool_rates(self._recorder, rollout, context)
        observe_tool_calls(self._recorder, context.tool_use)
        self.in_flight -= 1
        self._cap.finish_rollout()
        group.unfinished -= 1
        self.wake()
        if group.unfinished == 0:
            await self._finish(group)

    async def _finish(self, group: OpenGroup) -> None:
        if len(group.finished) < LEAST_ROLLOUTS:
            self._admission.close_group(finished_tokens=group.finished_tokens, offered_tokens=0)
            self.wake()
            await self._tell(PromptDropped(group.epoch, group.position, DropReason.ERROR))
            return
        group.queued_at = start = time.monotonic()
        await self._finished.put(group)
        self._recorder.record("rollout/score_block_s", time.monotonic() - start)

    @staticmethod
    def fail(failures: FailureBudget, reason: str) -> None:
        """Count a failure that costs a rollout or a prompt; the budget may end the run."""
        log.warning("%s", reason)
        failures.fail(reason)
        exceeded = failures.exceeded()
        if exceeded is not None:
            raise RunError(exceeded)
