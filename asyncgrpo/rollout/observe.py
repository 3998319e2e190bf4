"""The worker's metrics: what a rollout, a group and a server's load amount to.

Values are recorded with their weight, under every name that the catalogue reduces another way:
a length goes to the mean, the min and the max. Group statistics of trained groups are weighted
by their samples.

Shape suffix: G = the rollouts of one group.
"""

import numpy as np
from jaxtyping import Float64

from asyncgrpo.metrics.values import Recorder
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.group import Rollout, RolloutGroup
from asyncgrpo.rollout.open_group import OpenGroup
from asyncgrpo.rollout.sampling.samples import Drafts
from asyncgrpo.rollout.scoring.scoring import GroupRewards
from asyncgrpo.server.load import ServerLoad


def num_output_tokens(rollout: Rollout) -> int:
    """Tokens the sampler made for a rollout; tool results are not among them."""
    return sum(len(turn.output_ids) for turn in rollout.turns)


def is_terminated(rollout: Rollout, eos_ids: frozenset[int]) -> bool:
    """Whether the last turn ended by itself: by eos, or where the sampler says it stopped."""
    if not rollout.turns:
        return False
    last = rollout.turns[-1]
    if last.finish_reason is not None:
        return last.finish_reason is FinishReason.STOP
    return len(last.output_ids) > 0 and int(last.output_ids[-1]) in eos_ids


def observe_rollout(
    recorder: Recorder,
    rollout: Rollout,
    drafts: Drafts,
    *,
    duration_s: float,
    eos_ids: frozenset[int],
) -> None:
    """A rollout came to its end."""
    length = num_output_tokens(rollout)
    terminated = is_terminated(rollout, eos_ids)
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


def observe_group(
    recorder: Recorder,
    open_group: OpenGroup,
    group: RolloutGroup,
    scored: GroupRewards,
    *,
    kept: bool,
) -> None:
    """A group was scored, and is trained (`kept`) or dropped without signal."""
    assert group.rewards is not None, "observed after scoring"
    num_samples_G = np.array([len(f.drafts.drafts) for f in open_group.finished], np.float64)
    num_samples = float(num_samples_G.sum())
    recorder.record_all("completions/duplicate_frac", duplicates(group))
    for name, rewards_G in scored.by_name.items():
        recorder.record_all(f"rewards/{name}/mean", _scored(rewards_G))
        if kept and _scored(rewards_G).size:
            recorder.record(
                f"rewards/{name}/group_std", float(_scored(rewards_G).std()), num_samples
            )
    recorder.record_all("reward", _scored(group.rewards))
    recorder.record("frac_reward_zero_std", float(not kept))
    if not kept:
        recorder.record_all("reward_dropped", _scored(group.rewards))
        return
    recorder.record("reward_group_std", float(_scored(group.rewards).std()), num_samples)
    for reward, weight in zip(group.rewards, num_samples_G, strict=True):
        if weight and not np.isnan(reward):
            recorder.record("reward_kept", float(reward), float(weight))


def duplicates(group: RolloutGroup) -> list[bool]:
    """Per rollout: does it repeat an earlier one of its group, token by token in all turns?"""
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
