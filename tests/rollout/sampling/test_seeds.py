"""Request seeds: unique by construction, and within vLLM's range."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rollout.sampling.seeds import SEED_BITS, environment_seed, request_seed

requests = st.tuples(
    st.integers(0, 2**14 - 1),
    st.integers(0, 2**26 - 1),
    st.integers(0, 2**12 - 1),
    st.integers(0, 2**11 - 1),
)


def seed(run_seed, request):
    epoch, position, rollout, turn = request
    return request_seed(run_seed, epoch=epoch, position=position, rollout=rollout, turn=turn)


@given(st.integers(-(2**70), 2**70), requests, requests)
def test_two_requests_of_a_run_never_share_a_seed(run_seed, one, other):
    assert (seed(run_seed, one) == seed(run_seed, other)) == (one == other)


@given(st.integers(), requests)
def test_a_seed_is_a_signed_64_bit_number_that_is_not_negative(run_seed, request_numbers):
    assert 0 <= seed(run_seed, request_numbers) < 2**SEED_BITS


def test_all_requests_of_a_small_run_differ_also_from_those_of_another_run():
    grid = list(itertools.product(range(3), range(40), range(8), range(4)))
    assert len({seed(run, request) for run in (0, 1, 42) for request in grid}) == 3 * len(grid)


def test_neighbours_have_seeds_without_a_pattern():
    seeds = np.array([seed(42, (0, position, 0, 0)) for position in range(4096)], np.uint64)
    bits = (seeds[:, None] >> np.arange(SEED_BITS, dtype=np.uint64)) & np.uint64(1)
    assert (abs(bits.mean(axis=0) - 0.5) < 0.05).all()


def test_a_group_has_one_seed_for_its_environments_and_other_groups_have_others():
    seeds = [
        environment_seed(42, epoch=epoch, position=position)
        for epoch in range(3)
        for position in range(100)
    ]
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert len(set(seeds)) == 300
    assert environment_seed(42, epoch=0, position=0) == seeds[0]
    assert environment_seed(43, epoch=0, position=0) != seeds[0]


def test_the_seeds_stay_what_they_are():
    # A changed rule would change what a resumed run samples.
    assert seed(42, (0, 0, 0, 0)) == SEED_OF_THE_FIRST_REQUEST
    assert seed(42, (1, 2, 3, 4)) == SEED_OF_ANOTHER


SEED_OF_THE_FIRST_REQUEST = 947432939474654336
SEED_OF_ANOTHER = 2028360294818253514
