"""Finished groups are scored and become samples, or are dropped.

no reward failed? -> advantages -> scored rewards differ? -> a token to train? -> GroupReady
error                              unscored | no_signal      all_masked

Advantages are computed for dropped groups too: a hook may learn from them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from jaxtyping import Float64

from asyncgrpo.channel.messages import DropReason, PromptDropped
from asyncgrpo.errors import HookError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rollout.group import RolloutGroup
from asyncgrpo.rollout.limits.drought import Drought, example_of
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.observe import observe_group
from asyncgrpo.rollout.open_group import FinishedGroup, GroupOutcome, samples_of
from asyncgrpo.rollout.scoring.advantages import has_signal, total_rewards
from asyncgrpo.rollout.scoring.scoring import RewardFunction, score_group

log = logging.getLogger(__name__)

QUEUE_GROUPS = 16  # finished groups that wait; further ones block their last rollout
GROUPS_AT_ONCE = 64  # a judge may take a minute per group


class ScoringLoop:
    """Scores finished groups, several side by side.

    takes      finished groups from the scoring queue
    gives      GroupReady or PromptDropped to the trainer
    waits for  the reward functions
    woken by   the queue
    """

    def __init__(
        self,
        *,
        loop: AsyncRolloutLoop,
        rewards: Sequence[RewardFunction],
        limits: Limits,
        recorder: Recorder,
        finished: "asyncio.Queue[FinishedGroup]",
        emit: Callable[[GroupOutcome], Awaitable[None]],
        wake: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._rewards = rewards
        self._limits = limits
        self._recorder = recorder
        self._finished = finished
        self._emit = emit
        self._wake = wake
        self._warn = warn
        self._drought = Drought()

    async def run(self) -> None:
        """Scores groups until cancelled; `GROUPS_AT_ONCE` of these run side by side.

        Raises:
            RunError: the failure budget is used up, or nothing is ever scored.
        """
        while True:
            group = await self._finished.get()
            try:
                await self._resolve(group)
            finally:
                self._finished.task_done()

    async def _resolve(self, finished: FinishedGroup) -> None:
        start = time.monotonic()
        self._recorder.record("rollout/score_wait_s", start - finished.queued_at)
        group = finished.to_score()
        try:
            outcome = await self._outcome(finished, group)
        except HookError as error:
            self._fail(finished, error)
            outcome = finished.dropped(DropReason.ERROR)
        else:
            self._limits.scoring_failures.succeed()
        self._watch_drought(outcome, group)
        self._recorder.record("rollout/score_s", time.monotonic() - start)
        offered = sum(sample.num_tokens for sample in samples_of(outcome))
        self._limits.admission.close_group(
            finished_tokens=finished.num_tokens, offered_tokens=offered
        )
        self._wake()
        await self._emit(outcome)

    async def _outcome(self, finished: FinishedGroup, group: RolloutGroup) -> GroupOutcome:
        scored = await score_group(self._rewards, group)
        group.rewards = total_rewards(scored.weighted)
        advantages_G = self._advantages(group)
        observe_group(self._recorder, finished, group, scored)
        if np.isnan(group.rewards).all():
            return finished.dropped(DropReason.UNSCORED)
        if not has_signal(group.rewards):
            return finished.dropped(DropReason.NO_SIGNAL)
        if not finished.has_trained_token:
            return finished.dropped(DropReason.ALL_MASKED)
        return finished.ready(advantages_G, group.rewards, offered_at=time.time())

    def _advantages(self, group: RolloutGroup) -> Float64[np.ndarray, "G"]:
        hook = f"{type(self._loop).__name__}.compute_advantages"
        try:
            advantages_G = np.asarray(self._loop.compute_advantages(group), np.float64)
        except HookError:  # of rollout.advantage
            raise
        except Exception as error:
            raise hook_error(f"{hook} raised", error) from error
        if advantages_G.shape != (len(group.rollouts),):
            raise HookError(
                f"{hook} returned shape {advantages_G.shape}; expected one number for each of "
                f"the {len(group.rollouts)} rollouts"
            )
        if not np.isfinite(advantages_G).all():
            raise HookError(f"{hook} returned {advantages_G.tolist()}; expected finite numbers")
        return advantages_G

    def _watch_drought(self, outcome: GroupOutcome, group: RolloutGroup) -> None:
        if not isinstance(outcome, PromptDropped):
            self._drought.gave()
        elif warning := self._drought.empty(outcome.reason, example_of(group)):
            self._warn(warning)

    def _fail(self, group: FinishedGroup, error: HookError) -> None:
        self._limits.count_unscored(f"row {group.opened.prompt.row_index}: {error}", error)
