"""The worker's metrics of rollouts, tools, groups and the server's load.

A value is recorded under one name per reduction: a length goes to the mean, the min and the max.
Group statistics of trained groups are weighted by their samples. Calls of tools count for lost
rollouts too; rates of calls are over all rollouts that came to their end, trained or dropped.

Shape suffix: G = the rollouts of one group.
"""

import numpy as np
from jaxtyping import Float64

from asyncgrpo.metrics.values import Recorder
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.group import Rollout, RolloutGroup
from asyncgrpo.rollout.open_group import FinishedGroup
from asyncgrpo.rollout.sampling.context import RolloutContext
from asyncgrpo.rollout.sampling.samples import Drafts
from asyncgrpo.rollout.scoring.advantages import has_signal
from asyncgrpo.rollout.scoring.scoring import GroupRewards
from asyncgrpo.rollout.tools.tools import CallOutcome, ToolUse
from asyncgrpo.server.load import ServerLoad


def num_output_tokens(rollout: Rollout) -> int:
    """Tokens the sampler made for a rollout; tool results are not among them."""
    return sum(len(turn.output_ids) for turn in rollout.turns)


def is_terminated(rollout: Rollout, stop_tokens: frozenset[int]) -> bool:
    """True if the last turn ended by itself, by finish reason or last token."""
    if not rollout.turns:
        return False
    last = rollout.turns[-1]
    if last.finish_reason is not None:
        return last.finish_reason is FinishReason.STOP
    return len(last.output_ids) > 0 and int(last.output_ids[-1]) in stop_tokens


def observe_rollout(
    recorder: Recorder,
    rollout: Rollout,
    drafts: Drafts,
    *,
    duration_s: float,
    terminated: bool,
) -> None:
    """A rollout came to its end; `terminated` = by itself, not cut off."""
    length = num_output_tokens(rollout)
    names = ["length", "terminated_length"] if terminated else ["length"]
    for name in names:
        for reduction in ("mean", "min", "max"):
            recorder.record(f"completions/{reduction}_{name}", length)
    recorder.record("completions/clipped_ratio", float(not terminated))
    recorder.record("rollout/duration_s", duration_s)
    recorder.record("rollout/turns_mean", len(rollout.turns))
    recorder.record("rollout/turns_max", len(rollout.turns))
    recorder.record("rollout/samples_per_rollout", len(drafts.drafts))
    for drift in drafts.drift_tokens:
        recorder.record("rollout/fork_frac", float(drift > 0))
        recorder.record("rollout/drift_tokens_mean", drift)
        recorder.record("rollout/drift_tokens_max", drift)


def observe_tool_calls(recorder: Recorder, use: ToolUse) -> None:
    """The calls of a rollout, also of one that was lost."""
    recorder.record_all("tools/parallel_calls_mean", use.calls_per_reply)
    for call in use.calls:
        match call.outcome:
            case CallOutcome.UNKNOWN:
                recorder.record("tools/unknown_name_count", 1)
            case CallOutcome.MALFORMED:
                recorder.record("tools/malformed_count", 1)
            case CallOutcome.DONE | CallOutcome.FAILED | CallOutcome.TIMED_OUT:
                recorder.record("tools/latency_s", call.duration_s)
                recorder.record(f"tools/{call.name}/latency_s", call.duration_s)
                recorder.record(f"tools/{call.name}/call_count", 1)
                recorder.record(f"tools/{call.name}/failure_count", float(call.failed))


def observe_tool_rates(recorder: Recorder, rollout: Rollout, context: RolloutContext) -> None:
    """The call rates of a rollout at its end; nothing where it has no tools."""
    calls, failures = rollout.tool_call_count, rollout.tool_failure_count
    if not context.tools and not calls:
        return
    recorder.record("tools/call_frequency", calls)
    recorder.record("tools/failure_frequency", failures / calls if calls else 0.0, weight=calls)
    recorder.record("tools/loop_exhausted_frac", float(context.tool_use.exhausted))
    recorder.record("tools/context_full_frac", float(context.tool_use.context_is_full))
    for name in ("tools/unknown_name_count", "tools/malformed_count"):
        recorder.record(name, 0)  # none is an observation too
    for tool in context.tools:
        recorder.record(f"tools/{tool.__name__}/call_count", 0)
        recorder.record(f"tools/{tool.__name__}/failure_count", 0)


def observe_group(
    recorder: Recorder,
    finished: FinishedGroup,
    group: RolloutGroup,
    scored: GroupRewards,
) -> None:
    """A group was scored, and is trained or dropped."""
    assert group.rewards is not None, "observed after scoring"
    signal = has_signal(group.rewards)
    kept = signal and finished.has_trained_token
    num_samples_G = np.array([len(f.drafts.drafts) for f in finished.rollouts], np.float64)
    num_samples = float(num_samples_G.sum())
    recorder.record_all("completions/duplicate_frac", duplicates(group))
    for name, rewards_G in scored.by_name.items():
        recorder.record_all(f"rewards/{name}/mean", _scored(rewards_G))
        if kept and _scored(rewards_G).size:
            recorder.record(
                f"rewards/{name}/group_std", float(_scored(rewards_G).std()), num_samples
            )
    recorder.record_all("reward", _scored(group.rewards))
    recorder.record("frac_reward_zero_std", float(not signal))
    if not signal:
        recorder.record_all("reward_dropped", _scored(group.rewards))
    if not kept:
        return
    recorder.record("reward_group_std", float(_scored(group.rewards).std()), num_samples)
    for reward, weight in zip(group.rewards, num_samples_G, strict=True):
        if weight and not np.isnan(reward):
            recorder.record("reward_kept", float(reward), float(weight))


def duplicates(group: RolloutGroup) -> list[bool]:
    """True for each rollout whose outputs in all turns equal an earlier one's."""
    seen: set[tuple[bytes, ...]] = set()
    repeated: list[bool] = []
    for rollout in group.rollouts:
        outputs = tuple(np.asarray(turn.output_ids, np.int32).tobytes() for turn in rollout.turns)
        repeated.append(outputs in seen)
        seen.add(outputs)
    return repeated


def observe_load(recorder: Recorder, load: ServerLoad, preempted: int) -> None:
    """The server reported its load, and `preempted` requests since its last report."""
    recorder.record("rollout/vllm_kv_cache_usage_frac", load.kv_usage)
    recorder.record("rollout/vllm_running_requests", load.running)
    recorder.record("rollout/vllm_queued_requests", load.waiting)
    recorder.record("rollout/vllm_preemption_count", preempted)


def _scored(rewards_G: Float64[np.ndarray, "G"]) -> Float64[np.ndarray, "scored"]:
    return rewards_G[~np.isnan(rewards_G)]
