"""The shares of the workers make up the whole, of prompts and of limits."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.channel.shares import Share
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.metrics.window import reduce_window

counts = st.integers(1, 7)


def shares(count: int) -> list[Share]:
    return [Share(index, count) for index in range(count)]


def test_three_workers_take_turns():
    ordinals = [list(share.ordinals(range(2, 9))) for share in shares(3)]
    assert ordinals == [[3, 6], [4, 7], [2, 5, 8]]
    assert [share.of(512) for share in shares(3)] == [171, 171, 170]
    assert [share.name for share in shares(3)] == ["worker-0", "worker-1", "worker-2"]
    assert Share().name == "worker"


@given(counts, st.sets(st.integers(0, 60)))
def test_every_ordinal_is_one_workers(count: int, ordinals: set[int]):
    taken = [ordinal for share in shares(count) for ordinal in share.ordinals(sorted(ordinals))]
    assert sorted(taken) == sorted(ordinals)


@given(counts, st.integers(0, 40), st.integers(0, 40))
def test_an_epochs_ordinals_are_counted(count: int, start: int, length: int):
    for share in shares(count):
        counted = share.num_ordinals(start, start + length)
        assert counted == len(list(share.ordinals(range(start, start + length))))


@given(counts, st.integers(0, 1000))
def test_the_parts_of_a_limit_add_up_and_differ_by_one_at_most(count: int, total: int):
    parts = [share.of(total) for share in shares(count)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(counts, st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_gauges_observed_as_shares_reduce_to_their_sum(count: int, values: list[int]):
    window = Recorder()
    for share in shares(count):
        for value in values:
            window.record_rate("rollout/concurrency", value + share.index, share.weight)
    mean = sum(values) / len(values)
    expected = sum(mean + index for index in range(count))
    assert abs(reduce_window(window.drain())["rollout/concurrency"] - expected) < 1e-9
