"""The correction of a term's mismatch: the weight of its token's and its sample's ratios.

    r = p(o) / q(o) of the term's token,  rho = the product of r over the sample's n terms,
    g = rho^(1/n);  in(x) = 1 where low <= x <= high, else 0

    correction       weight           published as
    token_mask       r in(r)          masked importance sampling, of tokens
    icepop           r in(r)          IcePop: its calibration of [alpha, beta] = [low, high]
    token_clip       clamp(r)         truncated importance sampling; low 0 truncates above only
    sequence_mask    rho in(rho)      masked importance sampling, of sequences
    geometric_mask   r in(g)          geometric sequence masking: the same for every length
    none             1                no importance sampling: the sampler is taken for the policy

A weight is asked for the token that was drawn, and, by score centering, for any other token v that
might have been: then r = p(v) / q(v), and the ratios of the sample's other terms are held.

Letters: T terms, K top sampler tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asyncgrpo.training.model.row_tensors import RowTensors

Kind = Literal["token_mask", "token_clip", "sequence_mask", "geometric_mask", "icepop", "none"]

LOG_RATIO_LIMIT = 30.0  # exp(30) is beyond any clip range and still finite when squared


def ratio(log_ratio: Tensor) -> Tensor:
    """The ratio of two probabilities, finite whatever they are; NaN stays."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True, slots=True, eq=False)
class SampleRatios:
    """The ratios that a term's sample has beside that of its own token."""

    log_rest_T: Tensor  # log ratio of the sample's other terms together
    length_T: Tensor  # n: terms of the sample

    @classmethod
    def of(cls, log_ratio_T: Tensor, row: RowTensors) -> "SampleRatios":
        """Those of a row, in which every sample is whole."""
        zero_M = log_ratio_T.new_zeros(row.num_samples)
        log_rho_T = zero_M.index_add(0, row.term_sample_T, log_ratio_T)[row.term_sample_T]
        one_T = torch.ones_like(log_ratio_T)
        length_T = zero_M.index_add(0, row.term_sample_T, one_T)[row.term_sample_T]
        return cls(log_rho_T - log_ratio_T, length_T)

    def for_each_token(self) -> "SampleRatios":
        """The same, against values of [T, K]."""
        return SampleRatios(self.log_rest_T[:, None], self.length_T[:, None])


# docs/decisions/0016
@dataclass(frozen=True, slots=True)
class Correction:
    """A correction and its range."""

    kind: Kind
    low: float
    high: float

    @property
    def is_gate(self) -> bool:
        """True if it only keeps or drops tokens: the clipped loss has its own ratio."""
        return self.kind in {"token_mask", "geometric_mask", "none"}

    def keeps(self, log_ratio: Tensor, sample_ratios: SampleRatios) -> Tensor:
        """The mask of tokens that have a weight at all."""
        match self.kind:
            case "token_mask" | "icepop":
                return self._inside(ratio(log_ratio))
            case "sequence_mask":
                return self._inside(ratio(sample_ratios.log_rest_T + log_ratio))
            case "geometric_mask":
                return self._inside(
                    ratio((sample_ratios.log_rest_T + log_ratio) / sample_ratios.length_T)
                )
            case "token_clip" | "none":
                return torch.ones_like(log_ratio, dtype=torch.bool)

    def weight(self, log_ratio: Tensor, sample_ratios: SampleRatios) -> Tensor:
        """The weight of a token with this log ratio; 0 where it is left out."""
        match self.kind:
            case "token_mask" | "icepop" | "geometric_mask":
                weight = ratio(log_ratio)
            case "sequence_mask":
                weight = ratio(sample_ratios.log_rest_T + log_ratio)
            case "token_clip":
                weight = ratio(log_ratio).clamp(self.low, self.high)
            case "none":
                weight = torch.ones_like(log_ratio)
        return torch.where(self.keeps(log_ratio, sample_ratios), weight, 0)

    def _inside(self, value: Tensor) -> Tensor:
        return (value >= self.low) & (value <= self.high)
