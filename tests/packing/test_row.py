"""The worked example of the spec, then what must hold for every row."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import DataError
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample
from tests.packing.made_samples import make_sample, path_positions, samples


def trie_of(given_samples: list[Sample]) -> set[tuple[int, ...]]:
    """The spec's trie, naively: a node per distinct path of (token, next token) keys."""
    nodes: set[tuple] = set()
    for sample in given_samples:
        ids = sample.input_ids.tolist()
        keys = [*pairwise(ids), (ids[-1], ("end", sample.key.index))]
        nodes |= {tuple(keys[: depth + 1]) for depth in range(len(keys))}
    return nodes


def candidates_of(sample: Sample, i: int) -> list[int]:
    if sample.candidate_counts is None:
        return []
    start = int(sample.candidate_counts[:i].sum())
    return sample.candidate_ids[start : start + sample.candidate_counts[i]].tolist()


def test_two_rollouts_of_one_prompt():
    row = build_row([make_sample(0, [1, 2, 3, 10, 11], 3), make_sample(1, [1, 2, 3, 20, 21], 3)])
    assert row.input_ids_N.tolist() == [1, 2, 3, 10, 11, 3, 20, 21]
    assert row.position_ids_N.tolist() == [0, 1, 2, 3, 4, 2, 3, 4]
    assert row.segment_start_S.tolist() == [0, 2, 5]
    assert row.segment_length_S.tolist() == [2, 3, 3]
    assert row.segment_parent_S.tolist() == [-1, 0, 0]
    assert row.term_position_T.tolist() == [2, 3, 5, 6]
    assert row.term_target_T.tolist() == [10, 11, 20, 21]
    assert row.term_sample_T.tolist() == [0, 0, 1, 1]
    assert row.raw_tokens == 10


def test_one_position_predicts_for_two_samples():
    row = build_row([make_sample(0, [1, 2, 3], 1), make_sample(1, [1, 2, 4], 1)])
    assert row.input_ids_N.tolist() == [1, 2, 3, 2, 4]
    assert row.term_position_T.tolist() == [0, 0, 1, 3]
    assert row.term_target_T.tolist() == [2, 2, 3, 4]
    assert row.term_sample_T.tolist() == [0, 1, 0, 1]


def test_a_sample_that_another_extends_ends_on_a_position_of_its_own():
    row = build_row([make_sample(0, [1, 2]), make_sample(1, [1, 2, 3])])
    assert row.input_ids_N.tolist() == [1, 2, 2, 3]
    assert row.segment_parent_S.tolist() == [-1, 0, 0]


def test_samples_with_different_numbers_of_top_tokens_are_refused():
    plain = Sample(
        make_sample(1, [1, 2]).key, np.array([1, 2], np.int32), np.array([0, 1], np.uint8),
        np.zeros(2, np.float32), 0.0, 0,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"\[0, 2\] top sampler tokens.*num_sampler_logprobs"):
        build_row([make_sample(0, [1, 2]), plain])


def test_rows_without_top_tokens_have_none():
    plain = Sample(
        make_sample(1, [1, 2]).key, np.array([1, 2], np.int32), np.array([0, 1], np.uint8),
        np.zeros(2, np.float32), 0.0, 0,
    )  # fmt: skip
    assert build_row([plain]).top_ids_TK.shape == (1, 0)


def test_candidate_sets_follow_their_terms():
    ids, trained = np.array([1, 2, 5], np.int32), np.array([0, 1, 1], np.uint8)
    plain = Sample(make_sample(0, [1, 2]).key, ids, trained, np.zeros(3, np.float32), 0.0, 0)
    drawn = Sample(
        make_sample(1, [1, 2]).key, np.array([1, 2, 6], np.int32), trained, np.zeros(3, np.float32),
        0.0, 0, candidate_ids=np.array([2, 3, 6, 7, 8], np.int32),
        candidate_counts=np.array([0, 2, 3], np.int32),
    )  # fmt: skip
    row = build_row([plain, drawn])
    assert row.term_target_T.tolist() == [2, 2, 5, 6]
    assert row.candidate_counts_T.tolist() == [0, 2, 0, 3]
    assert row.candidate_ids.tolist() == [2, 3, 6, 7, 8]
    assert build_row([plain]).candidate_ids.size == 0


@given(samples())
def test_every_trained_token_is_in_exactly_one_term_with_all_it_carries(given_samples):
    row = build_row(given_samples)
    by_key = {sample.key: sample for sample in given_samples}
    seen: list[tuple[int, int]] = []
    set_ends = np.cumsum(row.candidate_counts_T)
    for t in range(row.term_position_T.size):
        sample = by_key[row.sample_keys[row.term_sample_T[t]]]
        path = path_positions(row, row.term_position_T[t])
        i = len(path)  # the token that this position predicts
        seen.append((sample.key.index, i))
        assert row.input_ids_N[path].tolist() == sample.input_ids[:i].tolist()
        assert row.term_target_T[t] == sample.input_ids[i]
        assert row.term_sampler_logprob_T[t] == sample.sampler_logprobs[i]
        assert row.term_advantage_T[t] == sample.advantage
        assert row.top_ids_TK[t].tolist() == sample.top_ids[i].tolist()
        assert row.top_logprobs_TK[t].tolist() == sample.top_logprobs[i].tolist()
        ids = row.candidate_ids[set_ends[t] - row.candidate_counts_T[t] : set_ends[t]]
        assert ids.tolist() == candidates_of(sample, i)
    assert sorted(seen) == [
        (sample.key.index, i) for sample in given_samples for i in np.flatnonzero(sample.trained)
    ]


@given(samples())
def test_unpacking_a_row_gives_each_sample_back(given_samples):
    row = build_row(given_samples)
    leaves = np.setdiff1d(np.arange(row.segment_start_S.size), row.segment_parent_S)
    ends = (row.segment_start_S + row.segment_length_S)[leaves] - 1
    unpacked = [row.input_ids_N[path_positions(row, int(end))].tolist() for end in ends]
    by_key = {sample.key: sample for sample in given_samples}
    assert unpacked == [by_key[key].input_ids.tolist() for key in row.sample_keys]


@given(samples())
def test_the_row_has_the_tokens_and_segments_of_the_trie(given_samples):
    row = build_row(given_samples)
    nodes = trie_of(given_samples)
    assert row.input_ids_N.size == len(nodes)
    children = {node: sum(other[:-1] == node for other in nodes) for node in nodes | {()}}
    starts = sum(len(node) == 1 or children[node[:-1]] > 1 for node in nodes)
    assert row.segment_start_S.size == starts
    assert (row.segment_length_S > 0).all()
    assert (row.segment_parent_S < np.arange(starts)).all()
    for position in range(row.input_ids_N.size):
        assert row.position_ids_N[position] == len(path_positions(row, position)) - 1


@given(samples(), st.data())
def test_the_order_of_the_samples_does_not_matter(given_samples, data: st.DataObject):
    row, other = build_row(given_samples), build_row(data.draw(st.permutations(given_samples)))
    for name in row.__struct_fields__:
        np.testing.assert_array_equal(getattr(row, name), getattr(other, name))
    assert (np.diff(row.term_position_T) >= 0).all()
