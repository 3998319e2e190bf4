"""The order in which recurrent layers read a row: every token after exactly its own history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.packing import recurrence_plan
from asyncgrpo.packing.recurrence_plan import (
    CHUNK_SIZES,
    NOTHING,
    ChunkTree,
    plan_chunks,
    plan_convolution,
)
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from tests.packing.made_samples import make_sample, path_positions, samples


def histories(tree: ChunkTree) -> dict[int, list[int]]:
    """The tokens that a scan over the levels has read once it has read a token."""
    found: dict[int, list[int]] = {}
    nexts = [iter(group.position_BL.tolist()) for group in tree.groups]
    before: list[list[int]] = []
    for level in range(len(tree.parents) + 1):
        parents = tree.parents[level - 1] if level else None
        after: list[list[int]] = []
        for group, rows in zip(tree.groups, nexts, strict=True):
            for _ in range(group.level_counts[level]):
                read = list(before[parents[len(after)]]) if parents is not None else []
                for position in next(rows):
                    if position != NOTHING:
                        read.append(position)
                        assert position not in found
                        found[position] = list(read)
                after.append(read)
        before = after
    assert all(next(rows, None) is None for rows in nexts)
    return found


def assert_each_reads_its_history(row: Row) -> None:
    tree = plan_chunks(row)
    expected = {n: path_positions(row, n) for n in range(row.input_ids_N.size)}
    assert histories(tree) == expected
    places = np.concatenate([group.position_BL.ravel() for group in tree.groups])
    np.testing.assert_array_equal(places[tree.output_N], np.arange(row.input_ids_N.size))


def forked_row() -> Row:
    """The row of the module's picture: 100 tokens, then 3 or 70."""
    stem = [7] * 99 + [8]
    return build_row([make_sample(0, [*stem, 1, 1, 1]), make_sample(1, [*stem, *[2] * 70])])


def test_two_rollouts_of_one_prompt():
    # The trie branches one token early: 99 tokens, then 4 or 71.
    tree = plan_chunks(forked_row())
    short, long = tree.groups
    assert short.position_BL.shape == (2, 16)
    assert short.level_counts == (0, 0, 1, 1)
    assert short.position_BL[:, :4].tolist() == [[99, 100, 101, 102], [167, 168, 169, 170]]
    assert set(short.position_BL[0, 4:]) == {NOTHING}
    assert long.position_BL[:, 0].tolist() == [0, 64, 103]
    assert long.level_counts == (1, 1, 1, 0)
    assert [parent_B.tolist() for parent_B in tree.parents] == [[0], [0, 0], [1]]


@given(samples())
def test_every_token_comes_after_its_own_history_and_no_other(given_samples):
    assert_each_reads_its_history(build_row(given_samples))


@given(samples(max_tokens=40))
def test_so_it_does_where_segments_have_many_chunks(given_samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence_plan, "CHUNK_SIZES", (2, 5))
        assert_each_reads_its_history(build_row(given_samples))


@given(samples(max_samples=30, max_tokens=200))
def test_padding_is_bounded(given_samples):
    row = build_row(given_samples)
    computed = sum(group.position_BL.size for group in plan_chunks(row).groups)
    num_segments = row.segment_start_S.size
    ratio = CHUNK_SIZES[1] / CHUNK_SIZES[0]
    assert computed <= ratio * row.input_ids_N.size + (CHUNK_SIZES[0] - 1) * num_segments


@given(samples(), st.integers(1, 6))
def test_the_convolution_reads_each_tokens_last_ancestors(given_samples, kernel_size: int):
    row = build_row(given_samples)
    plan = plan_convolution(row, kernel_size)
    for position, output in enumerate(plan.output_N.tolist()):
        path = path_positions(row, position)[-kernel_size:]
        expected = [NOTHING] * (kernel_size - len(path)) + path
        assert plan.source_P[output : output + kernel_size].tolist() == expected
