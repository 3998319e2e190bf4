"""The metrics of a rollout and of a group, by hand, with their weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.metrics.catalog import describe
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Rollout, RolloutGroup, TurnRecord
from asyncgrpo.rollout.observe import (
    duplicates,
    is_terminated,
    observe_group,
    observe_rollout,
)
from asyncgrpo.rollout.open_group import FinishedRollout, OpenGroup
from asyncgrpo.rollout.sampling.samples import draft_samples
from asyncgrpo.rollout.scoring.scoring import GroupRewards

EOS = frozenset({2})
NAN = np.nan


def turn(prompt, output, finish_reason: FinishReason | None = FinishReason.STOP):
    return TurnRecord(prompt, output, [-1.0] * len(output), finish_reason=finish_reason)


def rollout(*turns):
    return Rollout([], [], list(turns))


def observed(*rollouts):
    recorder = Recorder()
    for each in rollouts:
        drafts = draft_samples(each.turns, num_top_logprobs=0)
        observe_rollout(recorder, each, drafts, duration_s=1.0, terminated=is_terminated(each, EOS))
    return recorder.drain()


def mean(metrics, name):
    return metrics[name].total / metrics[name].weight


def test_lengths_count_what_the_sampler_made_and_clipped_rollouts_are_no_terminated_ones():
    metrics = observed(
        rollout(turn([1], [5] * 10)),
        rollout(turn([1], [5] * 30, FinishReason.LENGTH)),
        rollout(turn([1], [5] * 3), turn([1, 5, 5, 5, 9, 9], [6] * 17)),
    )
    assert mean(metrics, "completions/mean_length") == 20
    assert metrics["completions/min_length"].low == 10
    assert metrics["completions/max_length"].high == 30
    assert mean(metrics, "completions/mean_terminated_length") == 15
    assert metrics["completions/max_terminated_length"].high == 20
    assert mean(metrics, "completions/clipped_ratio") == pytest.approx(1 / 3)
    assert metrics["rollout/turns_max"].high == 2
    assert metrics["rollout/fork_frac"].weight == 1


def test_forks_and_drift_are_per_transition():
    metrics = observed(
        rollout(turn([1], [5, 6]), turn([1, 5, 6, 9], [7]), turn([1, 5, 8], [7])),
    )
    assert mean(metrics, "rollout/fork_frac") == 0.5
    assert mean(metrics, "rollout/drift_tokens_mean") == 1.5  # 0, and [6, 9, 7]
    assert metrics["rollout/drift_tokens_max"].high == 3
    assert mean(metrics, "rollout/samples_per_rollout") == 2


def test_a_hook_that_gives_no_finish_reason_is_judged_by_its_last_token():
    assert is_terminated(rollout(turn([1], [5, 2], None)), EOS)
    assert not is_terminated(rollout(turn([1], [5, 6], None)), EOS)
    assert not is_terminated(rollout(turn([1], [], None)), EOS)
    assert not is_terminated(rollout(), EOS)


def a_group(rewards, *outputs):
    rollouts = [rollout(*(turn([1], output) for output in turns)) for turns in outputs]
    group = RolloutGroup(rollouts, [], {}, 0, 0, 0, [], rewards=np.array(rewards))
    finished = [
        FinishedRollout(i, each, draft_samples(each.turns, num_top_logprobs=0), 0, 0.0, [])
        for i, each in enumerate(rollouts)
    ]
    prompt = Prompt(0, [], {}, {})
    opened = OpenGroup(
        0, 0, 0, prompt, np.array([1], np.int32), 0, len(finished), ended=[*finished]
    )
    return opened.close(queued_at=0.0), group


def test_a_duplicate_repeats_an_earlier_rollout_in_all_turns():
    _, group = a_group([0.0] * 4, [[5], [6]], [[5], [6]], [[5, 6]], [[5], [6]])
    assert duplicates(group) == [False, True, False, True]


tokens = st.lists(st.integers(0, 2), max_size=2)


@given(st.lists(st.lists(tokens, min_size=1, max_size=2), min_size=2, max_size=8))
def test_duplicates_are_counted_as_a_plain_comparison_of_all_turns_would(outputs):
    _, group = a_group([0.0] * len(outputs), *outputs)
    assert duplicates(group) == [turns in outputs[:i] for i, turns in enumerate(outputs)]


def test_a_kept_group_is_weighted_by_its_samples():
    # The second rollout forks into two samples, the third was not scored.
    finished, group = a_group([1.0, 3.0, NAN], [[5]], [[5], [6]], [[7]])
    scored = GroupRewards({"r": np.array([1.0, 3.0, NAN])}, np.zeros((1, 3)))
    recorder = Recorder()
    observe_group(recorder, finished, group, scored)
    metrics = recorder.drain()
    assert (mean(metrics, "reward"), metrics["reward"].weight) == (2, 2)
    assert mean(metrics, "rewards/r/mean") == 2
    assert (mean(metrics, "rewards/r/group_std"), metrics["rewards/r/group_std"].weight) == (1, 4)
    assert mean(metrics, "reward_group_std") == 1
    assert mean(metrics, "reward_kept") == pytest.approx((1 + 2 * 3) / 3)
    assert mean(metrics, "frac_reward_zero_std") == 0
    assert "reward_dropped" not in metrics


def test_a_dropped_group_counts_for_the_reward_and_not_for_what_is_trained():
    finished, group = a_group([1.0, 1.0], [[5]], [[6]])
    scored = GroupRewards({"r": np.array([1.0, 1.0])}, np.zeros((1, 2)))
    recorder = Recorder()
    observe_group(recorder, finished, group, scored)
    metrics = recorder.drain()
    assert mean(metrics, "reward") == mean(metrics, "reward_dropped") == 1
    assert mean(metrics, "frac_reward_zero_std") == 1
    assert not {"reward_kept", "reward_group_std", "rewards/r/group_std"} & metrics.keys()


def test_every_name_is_in_the_catalogue():
    finished, group = a_group([1.0, 3.0], [[5]], [[5], [6]])
    scored = GroupRewards({"r": np.array([1.0, 3.0])}, np.zeros((1, 2)))
    recorder = Recorder()
    observe_group(recorder, finished, group, scored)
    names = {*recorder.drain(), *observed(rollout(turn([1], [5]), turn([1], [6])))}
    assert [name for name in names if describe(name) is None] == []
