"""Samples for the packing tests: made from token lists, and drawn by hypothesis."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from asyncgrpo.records import Row, Sample, SampleKey


def make_sample(index: int, input_ids: Sequence[int], prompt_length: int = 1, position: int = 0):
    """Every token after the prompt is trained; arrays carry values that tell tokens apart."""
    ids = np.array(input_ids, np.int32)
    trained = np.zeros(ids.size, np.uint8)
    trained[prompt_length:] = 1
    truncated = index % 3 > 0  # every third sample was drawn from the full vocabulary
    counts = ((np.arange(ids.size) + index) % 4 * trained).astype(np.int32)
    marks = (index * 1000 + np.arange(ids.size)).astype(np.float32)
    return Sample(
        key=SampleKey(0, position, index),
        input_ids=ids,
        trained=trained,
        sampler_logprobs=-marks,
        advantage=float(index),
        policy_version=index % 3,
        top_ids=np.stack([ids, ids + 1], axis=1),
        top_logprobs=np.stack([-marks, -marks - 0.5], axis=1),
        candidate_ids=np.concatenate(
            [ids[:0], *(ids[i] + np.arange(c) for i, c in enumerate(counts))]
        ).astype(np.int32)
        if truncated
        else None,
        candidate_counts=counts if truncated else None,
    )


@st.composite
def samples(draw: st.DrawFn, max_samples: int = 12, max_tokens: int = 12) -> list[Sample]:
    """Few different tokens, so that prefixes, forks and equal samples are common."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 2), min_size=1, max_size=max_tokens),
                st.integers(1, 4),
                st.integers(0, 3),
            ),
            min_size=1,
            max_size=max_samples,
        )
    )
    return [make_sample(i, ids, start, group) for i, (ids, start, group) in enumerate(drawn)]


def path_positions(row: Row, position: int) -> list[int]:
    """Row positions from the root to `position`, followed segment by segment."""
    ends = row.segment_start_S + row.segment_length_S
    segment = int(np.searchsorted(ends, position, side="right"))
    path = list(range(row.segment_start_S[segment], position + 1))
    while (segment := int(row.segment_parent_S[segment])) >= 0:
        path = [*range(row.segment_start_S[segment], ends[segment]), *path]
    return path
