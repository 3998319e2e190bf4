"""B12: groups scored per second with a reward that waits 200 ms, as for a judge.

    finished groups -> scoring queue -> ScoringLoop x GROUPS_AT_ONCE -> GroupReady

The reward waits and computes nothing, so this is a matter of how many groups are scored side by
side, and the figure holds on a busy machine too.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from asyncgrpo.config import RewardSource
from asyncgrpo.ledger.failure_budget import FailureBudget
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Rollout, RolloutGroup, TurnRecord
from asyncgrpo.rollout.limits.admission import Admission
from asyncgrpo.rollout.limits.concurrency import ConcurrencyCap
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.open_group import (
    FinishedGroup,
    FinishedRollout,
    GroupOutcome,
    OpenGroup,
    samples_of,
)
from asyncgrpo.rollout.sampling.samples import draft_samples
from asyncgrpo.rollout.scoring.advantages import AdvantageRule
from asyncgrpo.rollout.scoring.scoring import RewardFunction
from asyncgrpo.rollout.scoring_loop import GROUPS_AT_ONCE, QUEUE_GROUPS, ScoringLoop
from tests.bench.figure import Figure

WAIT_S = 0.2
GROUP, TOKENS = 8, 64
GROUPS = 400
REPEATS = 3
LEAST_PER_S = 100.0


def measure() -> list[Figure]:
    """Groups per second, with a function that sleeps and with a coroutine that does."""
    figures: list[Figure] = []
    for kind, function in (("sync", waiting_reward), ("async", async_waiting_reward)):
        speed = statistics.median(asyncio.run(_speed(function)) for _ in range(REPEATS))
        what = f"{kind} reward of {WAIT_S * 1000:.0f} ms"
        figures.append(Figure("B12", what, speed, "groups/s", LEAST_PER_S))
    return figures


def waiting_reward(completions: list[Any], **_: Any) -> list[float]:
    """Waits in its thread."""
    time.sleep(WAIT_S)
    return [float(index) for index in range(len(completions))]


async def async_waiting_reward(completions: list[Any], **_: Any) -> list[float]:
    """Waits on the hooks' loop."""
    await asyncio.sleep(WAIT_S)
    return [float(index) for index in range(len(completions))]


class _Loop:
    """The part of a loop that ScoringLoop uses."""

    def compute_advantages(self, group: RolloutGroup) -> Any:
        assert group.rewards is not None
        return AdvantageRule("group_std").of(group.rewards)


async def _speed(function: Callable[..., list[float] | Awaitable[list[float]]]) -> float:
    finished: asyncio.Queue[FinishedGroup] = asyncio.Queue(QUEUE_GROUPS)
    num_samples = 0

    async def emit(outcome: GroupOutcome) -> None:
        nonlocal num_samples
        num_samples += len(samples_of(outcome))

    scoring = ScoringLoop(
        loop=_Loop(),  # pyright: ignore[reportArgumentType] - only what it uses
        rewards=[RewardFunction(RewardSource(path="bench:wait", name="wait"), function)],
        limits=Limits(
            admission=Admission(10**9),
            cap=ConcurrencyCap(GROUPS * GROUP),
            rollout_failures=FailureBudget(0.05),
            scoring_failures=FailureBudget(0.05),
        ),
        recorder=Recorder(),
        finished=finished,
        emit=emit,
        wake=lambda: None,
        warn=lambda _: None,
    )
    groups = [_group(number) for number in range(GROUPS)]
    scorers = [asyncio.create_task(scoring.run()) for _ in range(GROUPS_AT_ONCE)]
    start = time.monotonic()
    for group in groups:
        await finished.put(group)
    await finished.join()
    seconds = time.monotonic() - start
    for scorer in scorers:
        scorer.cancel()
    assert num_samples == GROUPS * GROUP, "every group was scored and kept"
    return GROUPS / seconds


def _group(number: int) -> FinishedGroup:
    prompt_ids = np.arange(16, dtype=np.int32)
    messages = [{"role": "user", "content": "?"}]
    prompt = Prompt(row_index=number, messages=messages, row={}, columns={})
    opened = OpenGroup(
        group_id=number, epoch=0, position=number, prompt=prompt, prompt_ids=prompt_ids,
        model_version=0, num_rollouts=GROUP,
        ended=[_rollout(index, prompt_ids, messages) for index in range(GROUP)],
    )  # fmt: skip
    return opened.close(queued_at=time.monotonic())


def _rollout(index: int, prompt_ids: Any, messages: list[dict[str, Any]]) -> FinishedRollout:
    ids = np.random.default_rng(index).integers(3, 1000, TOKENS).astype(np.int32)
    turn = TurnRecord(
        prompt_ids=prompt_ids,
        output_ids=ids,
        output_log_probs=np.full(TOKENS, -1.0, np.float32),
        finish_reason=FinishReason.STOP,
    )
    completion = [{"role": "assistant", "content": "!"}]
    rollout = Rollout(completion=completion, completion_ids=ids.tolist(), turns=[turn])
    drafts = draft_samples([turn], num_top_logprobs=0)
    return FinishedRollout(index, rollout, drafts, 0, time.time(), messages)
