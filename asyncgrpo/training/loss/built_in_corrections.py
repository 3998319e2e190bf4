"""The corrections that `loss.correction` names by one word; each function here is one.

    r = p(o) / q(o) of the token,  rho = the product of r over the sample's n terms
    g = rho^(1/n);  in(x) = 1 where clip_min <= x <= clip_max, else 0

    correction       weight           published as
    token_mask       r in(r)          masked importance sampling, of tokens
    icepop           r in(r)          IcePop: its calibration of [alpha, beta] = [low, high]
    token_clip       clamp(r)         truncated importance sampling; low 0 truncates above only
    sequence_mask    rho in(rho)      masked importance sampling, of sequences
    geometric_mask   r in(g)          geometric sequence masking: the same for every length
    none             1                no importance sampling: the sampler is taken for the policy

To add one, write its function: the recipe, `validate` and the configuration reference read the
names from this file. `gate` and the arguments: `correction`.
"""

import torch
from torch import Tensor

from asyncgrpo.training.loss.correction import RatioLimits, Ratios, gate


@gate
def token_mask(ratios: Ratios, limits: RatioLimits) -> Tensor:
    """The token's ratio; 0 outside the range."""
    return torch.where(_inside(ratios.token, limits), ratios.token, 0)


def token_clip(ratios: Ratios, limits: RatioLimits) -> Tensor:
    """The token's ratio, moved to the bound of the range."""
    return ratios.token.clamp(limits.clip_min, limits.clip_max)


def sequence_mask(ratios: Ratios, limits: RatioLimits) -> Tensor:
    """The ratio of the whole sample; 0 outside the range."""
    return torch.where(_inside(ratios.sample, limits), ratios.sample, 0)


@gate
def geometric_mask(ratios: Ratios, limits: RatioLimits) -> Tensor:
    """The token's ratio; 0 where the geometric mean of its sample's is outside the range."""
    return torch.where(_inside(ratios.mean, limits), ratios.token, 0)


def icepop(ratios: Ratios, limits: RatioLimits) -> Tensor:
    """The weight of `token_mask`, which the loss without centering takes as a factor."""
    return torch.where(_inside(ratios.token, limits), ratios.token, 0)


@gate
def none(ratios: Ratios, limits: RatioLimits) -> Tensor:  # noqa: ARG001 - takes what all take
    """1 for every token."""
    return torch.ones_like(ratios.log_ratio)


def _inside(value: Tensor, limits: RatioLimits) -> Tensor:
    return (value >= limits.clip_min) & (value <= limits.clip_max)
