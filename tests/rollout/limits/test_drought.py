"""Groups without signal: a warning at each doubling, an end where none is scored."""

import pytest

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError
from asyncgrpo.rollout.limits.drought import FIRST_WARNING, MOST_UNSCORED, Drought


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
