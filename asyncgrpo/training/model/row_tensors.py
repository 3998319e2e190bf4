"""A row on the device, with what its forward pass and its loss need.

Letters: N forwarded tokens, T loss terms, K top sampler tokens, M samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row, Sample, SampleKey
from asyncgrpo.training.attention.row_recurrence import RowRecurrence
from asyncgrpo.training.attention.tree_attention import RowAttention
from asyncgrpo.training.head.candidate_head import CandidateTerms


@dataclass(frozen=True, slots=True, eq=False)
class RowTensors:
    """A row's arrays as tensors; made by `from_row`."""

    input_ids_1N: Tensor
    position_ids_1N: Tensor
    attention: RowAttention
    recurrence: RowRecurrence
    term_position_T: Tensor
    term_target_T: Tensor
    term_sampler_logprob_T: Tensor
    term_advantage_T: Tensor
    term_sample_T: Tensor
    top_ids_TK: Tensor | None  # None where the sampler gave no top logprobs
    top_logprobs_TK: Tensor | None
    candidates: CandidateTerms | None  # None where every term has the full vocabulary
    num_samples: int
    samples_with_terms: Tensor  # indices into M
    terms_by_staleness: dict[int, Tensor]  # indices into T; empty where staleness is unknown

    @property
    def num_trained(self) -> int:
        """Terms of the row: its trained tokens."""
        return self.term_target_T.shape[0]

    @classmethod
    def from_row(
        cls, row: Row, device: torch.device | str, policy_version: int | None = None
    ) -> "RowTensors":
        """Moves a row to the device.

        Args:
            row: The packed row.
            device: Where the policy is.
            policy_version: The current one, so that metrics tell staleness apart.
        """
        device = torch.device(device)

        def to_device(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.require(array, requirements="W")).to(device, dtype)

        has_top = row.top_ids_TK.shape[1] > 0
        return cls(
            input_ids_1N=to_device(row.input_ids_N, torch.int64)[None],
            position_ids_1N=to_device(row.position_ids_N, torch.int64)[None],
            attention=RowAttention(row, device),
            recurrence=RowRecurrence(row, device),
            term_position_T=to_device(row.term_position_T, torch.int64),
            term_target_T=to_device(row.term_target_T, torch.int64),
            term_sampler_logprob_T=to_device(row.term_sampler_logprob_T, torch.float32),
            term_advantage_T=to_device(row.term_advantage_T, torch.float32),
            term_sample_T=to_device(row.term_sample_T, torch.int64),
            top_ids_TK=to_device(row.top_ids_TK, torch.int64) if has_top else None,
            top_logprobs_TK=to_device(row.top_logprobs_TK, torch.float32) if has_top else None,
            candidates=CandidateTerms.from_arrays(
                row.candidate_ids, row.candidate_counts_T, device
            ),
            num_samples=len(row.sample_keys),
            samples_with_terms=to_device(np.unique(row.term_sample_T), torch.int64),
            terms_by_staleness={
                staleness: to_device(terms, torch.int64)
                for staleness, terms in _terms_by_staleness(row, policy_version).items()
            },
        )

    @classmethod
    def from_sequence(cls, token_ids: Sequence[int], device: torch.device | str) -> "RowTensors":
        """A row of one plain sequence; its terms are tokens 1 .. n-1."""
        input_ids = np.array(token_ids, np.int32)
        trained = np.ones(input_ids.size, np.uint8)
        trained[0] = 0
        sample = Sample(
            key=SampleKey(0, 0, 0),
            input_ids=input_ids,
            trained=trained,
            sampler_logprobs=np.zeros(input_ids.size, np.float32),
            advantage=0.0,
            policy_version=0,
        )
        return cls.from_row(build_row([sample]), device)


def _terms_by_staleness(row: Row, policy_version: int | None) -> dict[int, np.ndarray]:
    if policy_version is None:
        return {}
    staleness_T = policy_version - row.sample_policy_version_M[row.term_sample_T]
    return {int(value): np.flatnonzero(staleness_T == value) for value in np.unique(staleness_T)}
