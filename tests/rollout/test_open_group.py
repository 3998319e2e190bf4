"""A finished group keeps its rollouts' order, in whatever order they ended."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.records import VersionSpan
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Rollout, TurnRecord
from asyncgrpo.rollout.open_group import FinishedRollout, OpenGroup
from asyncgrpo.rollout.sampling.samples import draft_samples


def ended(index, *, num_turns=1, spans=()):
    """Rollout `index`, whose tokens name it, with a sample per turn."""
    turns = [
        TurnRecord([7], [10 * index + t], [-1.0], version_spans=spans) for t in range(num_turns)
    ]
    drafts = draft_samples(turns, num_top_logprobs=0)
    messages = [{"role": "user", "content": str(index)}]
    return FinishedRollout(index, Rollout([], [], turns), drafts, 5, 100.0 + index, messages)


def a_group(rollouts):
    prompt = Prompt(3, [], {}, {"target": 9})
    return OpenGroup(1, 2, 4, prompt, np.array([7], np.int32), 5, len(rollouts), ended=rollouts)


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_rollouts_samples_and_rewards_are_in_the_order_of_the_index(order, failed):
    group = a_group([None if i in failed else ended(i) for i in order])
    finished = group.close(queued_at=1.0)
    kept = [i for i in range(6) if i not in failed]
    assert [rollout.index for rollout in finished.rollouts] == kept
    assert [prompt[0]["content"] for prompt in finished.to_score().prompts] == [*map(str, kept)]
    assert finished.to_score().reward_kwargs == {"target": [9] * len(kept)}
    ready = finished.ready(np.array(kept, np.float64), 2.0 * np.array(kept), offered_at=2.0)
    assert [(s.rollout, s.advantage, s.reward, s.input_ids[-1]) for s in ready.samples] == [
        (i, float(i), 2.0 * i, 10 * i) for i in kept
    ]
    assert [sample.key.index for sample in ready.samples] == [*range(len(kept))]


def test_a_group_is_over_when_each_rollout_ended_or_failed():
    group = a_group([ended(1), None])
    group.num_rollouts = 3
    assert not group.is_over
    group.ended.append(ended(0))
    assert group.is_over


def test_a_sample_has_what_its_group_gives_it():
    span = VersionSpan(4, 0, 1)
    group = a_group([ended(1, spans=(span,)), ended(0, num_turns=2)])
    ready = group.close(queued_at=1.0).ready(
        np.array([0.5, -0.5]), np.array([1.0, np.nan]), offered_at=2.0
    )
    assert (ready.epoch, ready.position, ready.row_index) == (2, 4, 3)
    assert [(s.key.epoch, s.key.position, s.key.index) for s in ready.samples] == [
        (2, 4, 0), (2, 4, 1), (2, 4, 2),
    ]  # fmt: skip
    assert [s.rollout for s in ready.samples] == [0, 0, 1]
    assert [s.advantage for s in ready.samples] == [0.5, 0.5, -0.5]
    assert [s.policy_version for s in ready.samples] == [5, 5, 4]  # the oldest of its spans
    assert [s.generated_at for s in ready.samples] == [100.0, 100.0, 101.0]
    assert {s.queued_at for s in ready.samples} == {2.0}
