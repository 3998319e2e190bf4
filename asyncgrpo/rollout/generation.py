"""Prompts become finished groups, as many at once as the three limits allow.

    ordinal --Opening--> OpenGroup --RolloutRunner, once per rollout--> FinishedGroup

A failed rollout costs itself; its group goes on while two are left.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from asyncgrpo.channel.messages import DropReason, PromptDropped
from asyncgrpo.errors import RunError, UserError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rollout.hooks.threads import was_cancelled
from asyncgrpo.rollout.limits.heartbeats import Heartbeats
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.observe import num_output_tokens
from asyncgrpo.rollout.one_rollout import RolloutRunner
from asyncgrpo.rollout.open_group import FinishedGroup, FinishedRollout, OpenGroup
from asyncgrpo.rollout.opening import HEARTBEAT, Opening

LEAST_ROLLOUTS = 2  # advantages are relative to another rollout


class Generation:
    """Dispatches prompts and runs their rollouts.

    takes      ordinals not yet resolved, in order
    gives      finished groups to the scoring queue; dropped prompts to the trainer
    waits for  the staleness allowance (per group), the cap on rollouts in flight (per rollout)
    woken by   progress of the trainer, groups resolved, rollouts ended, a new cap
    """

    def __init__(
        self,
        *,
        opening: Opening,
        runner: RolloutRunner,
        limits: Limits,
        recorder: Recorder,
        heartbeats: Heartbeats,
        finished: "asyncio.Queue[FinishedGroup]",
        tell: Callable[[PromptDropped], Awaitable[None]],
    ) -> None:
        self._opening = opening
        self._runner = runner
        self._limits = limits
        self._recorder = recorder
        self._heartbeats = heartbeats
        self._finished = finished
        self._tell = tell
        self._changed = asyncio.Event()
        self.in_flight = 0  # rollouts under way
        self.generated_tokens = 0  # since the start

    def wake(self) -> None:
        """Has the loop look again whether it may start more."""
        self._changed.set()

    async def run(self, ordinals: Iterable[int]) -> None:
        """Generates for every ordinal; returns when the last group is queued for scoring.

        Raises:
            UserError: the run cannot go on.
        """
        async with asyncio.TaskGroup() as rollouts:
            for ordinal in ordinals:
                await self._wait_for_allowance()
                group = await self._opening.open(ordinal)
                if group is None:
                    await asyncio.sleep(0)  # a run of filtered prompts must not hold the loop
                    continue
                self._limits.admission.start_group(group.num_rollouts)
                for index in range(group.num_rollouts):
                    await self._wait_for_slot()
                    rollouts.create_task(self._run_rollout(group, index))
            self._heartbeats.rest(HEARTBEAT)  # all is dispatched; the rollouts end by themselves

    async def _wait_for_allowance(self) -> None:
        start = time.monotonic()
        used_up = self._limits.admission.is_used_up()
        await self._wait_until(self._limits.admission.may_start)
        self._recorder.record("rollout/backpressure_s", (time.monotonic() - start) * used_up)

    async def _wait_for_slot(self) -> None:
        await self._wait_until(lambda: self.in_flight < self._limits.cap.cap)
        self.in_flight += 1

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._heartbeats.beat(HEARTBEAT)
        while not condition():
            self._changed.clear()
            with self._heartbeats.resting(HEARTBEAT):
                await self._changed.wait()

    async def _run_rollout(self, group: OpenGroup, index: int) -> None:
        group.ended.append(await self._rollout(group, index))
        self.in_flight -= 1
        self._limits.cap.finish_rollout()
        self.wake()
        if group.is_over:
            await self._finish(group.close(queued_at=time.monotonic()))

    async def _rollout(self, group: OpenGroup, index: int) -> FinishedRollout | None:
        """The rollout; None where it failed."""
        try:
            finished = await self._runner.run(group, index)
        except RunError:
            raise
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if was_cancelled(error):
                raise
            self._limits.admission.lose_rollout()
            failed = error if isinstance(error, UserError) else hook_error("a hook raised", error)
            self._limits.count_failure(f"row {group.prompt.row_index}: {failed}", failed)
            return None
        self._limits.admission.finish_rollout(finished.drafts.num_tokens)
        self._limits.rollout_failures.succeed()
        self.generated_tokens += num_output_tokens(finished.rollout)
        return finished

    async def _finish(self, group: FinishedGroup) -> None:
        if len(group.rollouts) < LEAST_ROLLOUTS:
            self._limits.admission.close_group(finished_tokens=group.num_tokens, offered_tokens=0)
            self.wake()
            await self._tell(group.dropped(DropReason.ERROR))
            return
        await self._finished.put(group)
        self._recorder.record("rollout/score_block_s", time.monotonic() - group.queued_at)
