"""The rows that samples go to, then laws for every stream of them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing.cost import TOKEN_COST, path_cost
from asyncgrpo.packing.planner import MicroBatch, Planner
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample
from tests.packing.made_samples import make_sample, samples


def feed(planner: Planner, sample: Sample) -> list[MicroBatch]:
    """Take a sample, which must fit a row; the micro-batches that are full with it."""
    assert planner.add(sample)
    return list(iter(planner.next_full, None))


def run(planner: Planner, given_samples: list[Sample]) -> tuple[list[MicroBatch], list[Sample]]:
    micro_batches: list[MicroBatch] = []
    dropped: list[Sample] = []
    for sample in given_samples:
        if not planner.add(sample):
            dropped.append(sample)
        micro_batches += iter(planner.next_full, None)
    micro_batches += iter(planner.flush, None)
    return micro_batches, dropped


def indices(micro_batch: MicroBatch) -> list[list[int]]:
    return [sorted(sample.key.index for sample in row.samples) for row in micro_batch.rows]


def group(position: int, first_index: int, size: int, completion: int = 3) -> list[Sample]:
    prompt = [position * 10 + 1, position * 10 + 2, position * 10 + 3]
    return [
        make_sample(first_index + i, [*prompt, *[100 + first_index + i] * completion], 3, position)
        for i in range(size)
    ]


def test_a_group_stays_in_one_row_and_groups_spread_over_the_rows():
    planner = Planner(num_rows=2, token_budget=100)
    micro_batches, _ = run(planner, [*group(0, 0, 3), *group(1, 3, 3)])
    assert [indices(m) for m in micro_batches] == [[[0, 1, 2], [3, 4, 5]]]


def test_a_full_micro_batch_leaves_without_a_flush():
    planner = Planner(num_rows=1, token_budget=10)
    first, second, _ = group(0, 0, 3)  # 6, then 10 tokens
    assert feed(planner, first) == []
    assert [indices(m) for m in feed(planner, second)] == [[[0, 1]]]  # waits for no third to come
    assert planner.num_held == 0


def test_a_small_sample_fills_a_gap_while_a_large_one_waits():
    planner = Planner(num_rows=1, token_budget=20)
    large, larger, small = [
        make_sample(i, [i + 1] * n, 1, position=i) for i, n in enumerate([12, 15, 8])
    ]
    micro_batches, _ = run(planner, [large, larger, small])
    assert [indices(m) for m in micro_batches] == [[[0, 2]], [[1]]]


def test_a_sample_longer_than_a_row_is_refused_at_once():
    planner = Planner(num_rows=1, token_budget=4)
    assert not planner.add(make_sample(0, [1] * 5))
    assert planner.num_held == 0


def test_trained_tokens_count_against_the_budget_too():
    # Equal samples share all but one position, but each is trained on all of its own.
    planner = Planner(num_rows=1, token_budget=10)
    micro_batches, _ = run(planner, [make_sample(i, [1] * 5) for i in range(4)])
    assert [indices(m) for m in micro_batches] == [[[0, 1]], [[2, 3]]]


def test_one_group_is_divided_when_ranks_would_be_left_without_a_row():
    micro_batches, _ = run(Planner(num_rows=3, token_budget=1000), group(0, 0, 8))
    assert len(micro_batches) == 1
    assert all(indices(micro_batches[0]))


def test_fewer_samples_than_ranks_stay_held():
    planner = Planner(num_rows=3, token_budget=1000)
    micro_batches, _ = run(planner, group(0, 0, 2))
    assert micro_batches == []
    assert planner.num_held == 2


def test_load_is_the_keys_seen_and_a_cost_per_token():
    assert path_cost(0, 3) == 1 + 2 + 3 + 3 * TOKEN_COST
    assert path_cost(2, 4) == 3 + 4 + 2 * TOKEN_COST


plans = {
    "num_rows": st.integers(1, 4),
    "budget": st.integers(1, 40),
    "lookahead": st.integers(0, 5),
}


@given(given_samples=samples(max_samples=40), **plans)
def test_no_row_is_empty_or_over_budget_and_its_figures_are_those_of_the_built_row(
    given_samples, num_rows, budget, lookahead
):
    for micro_batch in run(Planner(num_rows, budget, lookahead), given_samples)[0]:
        assert len(micro_batch.rows) == num_rows
        for planned in micro_batch.rows:
            row = build_row(planned.samples)
            assert 0 < planned.num_tokens == row.input_ids_N.size <= budget
            assert planned.num_trained == row.term_target_T.size <= budget
            depths = row.position_ids_N.tolist()
            assert planned.load == sum(path_cost(depth, depth + 1) for depth in depths)


@given(given_samples=samples(max_samples=40), **plans)
def test_every_sample_is_planned_once_dropped_or_held(given_samples, num_rows, budget, lookahead):
    planner = Planner(num_rows, budget, lookahead)
    micro_batches, dropped = run(planner, given_samples)
    planned = [i for m in micro_batches for row in indices(m) for i in row]
    assert len(set(planned)) == len(planned)
    assert len(planned) + len(dropped) + planner.num_held == len(given_samples)
    assert planner.num_held < num_rows
    assert all(sample.num_tokens > budget for sample in dropped)


def test_a_late_sample_of_an_older_policy_enters_the_next_micro_batch_first():
    planner = Planner(num_rows=1, token_budget=20)
    lengths_and_versions = [(15, 3), (6, 3), (6, 3), (15, 1)]
    given_samples = [
        msgspec.structs.replace(make_sample(i, [i + 1] * n, 1, position=i), policy_version=version)
        for i, (n, version) in enumerate(lengths_and_versions)
    ]
    micro_batches, _ = run(planner, given_samples)
    assert [indices(m) for m in micro_batches] == [[[0]], [[3]], [[1, 2]]]


def urgency(sample: Sample) -> tuple[int, int]:
    """The samples of the tests arrive in the order of their indices."""
    return sample.policy_version, sample.key.index


@given(given_samples=samples(max_samples=40), **plans)
def test_of_what_a_micro_batch_leaves_waiting_the_oldest_policys_is_in_the_next(
    given_samples, num_rows, budget, lookahead
):
    planner = Planner(num_rows, budget, lookahead)
    held: list[Sample] = []
    left_waiting: list[Sample] = []
    for sample in [*given_samples, None]:
        if sample is None:
            micro_batches = list(iter(planner.flush, None))
        else:
            held += [sample] * planner.add(sample)
            micro_batches = list(iter(planner.next_full, None))
        for micro_batch in micro_batches:
            leaves = {index for row in indices(micro_batch) for index in row}
            if left_waiting:
                assert min(left_waiting, key=urgency).key.index in leaves
            held = [s for s in held if s.key.index not in leaves]
            left_waiting = list(held)


@given(given_samples=samples(max_samples=40), **plans)
def test_the_first_to_come_is_in_the_first_micro_batch(given_samples, num_rows, budget, lookahead):
    micro_batches, dropped = run(Planner(num_rows, budget, lookahead), given_samples)
    gone = {sample.key.index for sample in dropped}
    if micro_batches:
        first = min(i for i in range(len(given_samples)) if i not in gone)
        assert first in {i for row in indices(micro_batches[0]) for i in row}


@given(given_samples=samples(max_samples=40), **plans)
def test_no_more_wait_than_the_lookahead_and_the_next_micro_batch_allow(
    given_samples, num_rows, budget, lookahead
):
    planner = Planner(num_rows, budget, lookahead)
    for sample in given_samples:
        planner.add(sample)
        while planner.next_full():
            pass
        assert len(planner._waiting) <= lookahead
        waiting = sum(arrival.num_tokens for arrival in planner._waiting)
        assert waiting < budget * num_rows
