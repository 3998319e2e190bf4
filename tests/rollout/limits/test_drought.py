"""Groups without signal: a warning at each doubling, an end where none is scored."""

import numpy as np
import pytest

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError
from asyncgrpo.rollout.limits.drought import (
    FIRST_WARNING,
    MOST_CONSTANT,
    MOST_UNSCORED,
    Drought,
    Example,
    example_of,
)
from tests.rollout.scoring.groups import group as make_group


def test_a_drought_is_told_at_each_doubling():
    drought = Drought()
    told = [n for n in range(1, 1000) if drought.empty(DropReason.NO_SIGNAL)]
    assert told == [64, 128, 256, 512]


def test_a_group_that_gives_ends_it():
    drought = Drought()
    for _ in range(10):
        for _ in range(FIRST_WARNING - 1):
            assert drought.empty(DropReason.NO_SIGNAL) is None
        drought.gave()


def test_a_drought_like_one_before_is_not_told_again():
    drought, told = Drought(), []
    for length in (100, 100, 127, 200, 200, 100, 600):
        told += [n + 1 for n in range(length) if drought.empty(DropReason.NO_SIGNAL)]
        drought.gave()
    assert told == [64, 128, 256, 512]


def test_rewards_that_never_score_end_the_run():
    drought = Drought()
    for _ in range(MOST_UNSCORED - 1):
        drought.empty(DropReason.UNSCORED)
    with pytest.raises(RunError, match="returned None for every rollout"):
        drought.empty(DropReason.UNSCORED)


def test_one_score_is_enough_to_go_on():
    drought = Drought()
    for _ in range(10):
        for _ in range(MOST_UNSCORED - 1):
            drought.empty(DropReason.UNSCORED)
        drought.empty(DropReason.NO_SIGNAL)


ZERO = Example("What is 37 + 58?", r"\boxed{61}}}9}", 0.0, of_all=True)
SOLVED = Example("What is 37 + 58?", r"\boxed{95}", 1.0, of_all=True)
MIXED = Example("What is 37 + 58?", r"\boxed{95}", 1.0, of_all=False)  # of which one is masked


def told_by(drought, example, groups):
    return [text for _ in range(groups) if (text := drought.empty(DropReason.NO_SIGNAL, example))]


def test_a_constant_reward_is_told_with_an_example():
    (told,) = told_by(Drought(), ZERO, FIRST_WARNING)
    assert told == (
        "none of the last 64 groups gave anything to train on: every reward was 0; for example of "
        r"prompt 'What is 37 + 58?', completion '\\boxed{61}}}9}'"
    )


def test_a_reward_that_was_constant_from_the_start_ends_the_run():
    drought = Drought()
    told_by(drought, ZERO, MOST_CONSTANT - 1)
    with pytest.raises(RunError, match=r"every reward was 0; .*the first 1,024 groups"):
        drought.empty(DropReason.NO_SIGNAL, ZERO)


@pytest.mark.parametrize("other", [SOLVED, MIXED])
def test_rewards_that_differ_between_groups_are_no_constant(other):
    drought = Drought()
    drought.empty(DropReason.NO_SIGNAL, other)
    told = told_by(drought, ZERO, 2 * MOST_CONSTANT)
    assert "got the same reward for every rollout of their group" in told[-1]


def test_a_policy_that_has_solved_all_its_prompts_ends_no_run():
    drought = Drought()
    drought.gave()
    told = told_by(drought, SOLVED, 2 * MOST_CONSTANT)
    assert "every reward was 1" in told[-1]


def test_long_texts_are_cut():
    assert len(str(Example("x" * 9999, "y" * 9999, 0.0, of_all=True))) < 400


def test_the_example_of_a_group_is_its_first_rollout():
    group = make_group("4", "five")
    assert example_of(group) is None  # not scored
    group.rewards = np.array([0.5, 0.5])
    assert example_of(group) == Example("hi", "4", 0.5, of_all=True)
    group.rewards = np.array([0.5, np.nan])
    assert example_of(group) == Example("hi", "4", 0.5, of_all=False)
    group.rewards = np.array([np.nan, 0.5])
    assert example_of(group) is None
