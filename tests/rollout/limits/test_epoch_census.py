"""An epoch whose prompts were all dropped is found, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import RunError
from asyncgrpo.rollout.limits.epoch_census import EpochCensus


def test_an_epoch_dropped_whole_names_the_commonest_reason():
    census = EpochCensus(3)
    for reason in ("too long", "rejected"):
        census.see(0)
        census.drop(reason)
    census.see(0)
    with pytest.raises(RunError, match=r"epoch 0: none of the 3 prompts .* 2 of them: rejected"):
        census.drop("rejected")


def test_where_nobody_knows_the_length_the_next_pass_tells():
    census = EpochCensus(None)
    for _ in range(5):
        census.see(0)
        census.drop("rejected")
    with pytest.raises(RunError, match="none of the 5 prompts"):
        census.see(1)


def test_a_resumed_epoch_that_ends_with_dropped_prompts_was_not_dropped_whole():
    census = EpochCensus(10)
    for _ in range(4):  # the other six were trained before
        census.see(2)
        census.drop("rejected")
    census.see(3)


epochs = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), max_size=5)  # dropped?


@given(epochs, st.booleans())
def test_it_raises_if_and_only_if_a_whole_epoch_was_dropped(stream, length_known):
    census = EpochCensus(4 if length_known else None)

    def go():
        for epoch, prompts in enumerate([*stream, [False] * 4]):
            for dropped in prompts:
                census.see(epoch)
                if dropped:
                    census.drop("rejected")

    if any(all(prompts) for prompts in stream):
        with pytest.raises(RunError):
            go()
    else:
        go()
