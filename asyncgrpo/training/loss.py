"""The loss of a row: score centering, or the clipped surrogate. Pure; metrics leave as sums.

    r = p(o) / q(o)      policy over sampler, of the sampled token o, at the same temperature
    f(r) = r inside [clip_min, clip_max], else 0

    score centering   grad L = - 1/D sum_t A ( f(r) grad log p(o)
                                              - sum_{v in top K} w_v grad log p(v) )
                      w_v = q_v f(p_v / q_v)                             tail: none
                      w_v = q_v f(p_v / q_v) - alpha p_v                 tail: proportional
                      alpha = rho f(1 / rho),  rho = max(1 - Q, eps) / max(1 - P, eps)
                      P, Q = the head's mass under p, q
    clipped           L = - 1/D sum_t [f(r) != 0] min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)

D, the denominator, is the caller's: a term masked by f still counts in it. Weights carry no
gradient: they multiply log p, whose gradient the formulas name.

Letters: T terms, K top sampler tokens, M samples.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asyncgrpo.config.loss import LossConfig
from asyncgrpo.errors import DataError
from asyncgrpo.training.forward import RowTensors, TermScores
from asyncgrpo.training.loss_sums import LossSums, observe, observe_mean

TAIL_FLOOR = 1e-6  # least mass outside the top K: keeps rho finite when K covers everything
LOG_RATIO_LIMIT = 30.0  # exp(30) is beyond any clip range and still finite when squared


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss section of the recipe, as the formulas need it."""

    score_centering: bool = True
    centering_tail: Literal["none", "proportional"] = "none"
    clip_min: float = 0.5
    clip_max: float = 5.0
    epsilon: float = 0.2
    epsilon_high: float = 0.2

    @classmethod
    def from_config(cls, config: LossConfig) -> "LossSettings":
        """The recipe's settings, `epsilon_high` filled in."""
        return cls(
            score_centering=config.score_centering,
            centering_tail=config.centering_tail,
            clip_min=config.vllm_importance_sampling_clip_min,
            clip_max=config.vllm_importance_sampling_clip_max,
            epsilon=config.epsilon,
            epsilon_high=config.epsilon if config.epsilon_high is None else config.epsilon_high,
        )


def policy_loss(
    scores: TermScores, row: RowTensors, settings: LossSettings, denominator: float | Tensor
) -> tuple[Tensor, LossSums]:
    """The row's part of the loss, and the sums its metrics come from.

    Args:
        scores: What the policy says about the row's terms.
        row: What the sampler said about them.
        settings: Which loss.
        denominator: Trained tokens of the micro-batch over all ranks, or of the step.

    Raises:
        DataError: Score centering without top sampler tokens.
    """
    if not row.term_target_T.numel():
        return scores.logprob_T.sum(), LossSums({})
    log_ratio_T = (scores.logprob_T.detach() - row.term_sampler_logprob_T).clamp(
        -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT
    )
    ratio_T = log_ratio_T.exp()
    if settings.score_centering:
        loss_T = _score_centered(scores, row, ratio_T, settings)
    else:
        loss_T = _clipped(scores, row, ratio_T, settings)
    loss = loss_T.sum() / denominator
    with torch.no_grad():
        sums = _sums(scores, row, log_ratio_T, ratio_T, settings)
    return loss, sums


def trusted_ratio(ratio: Tensor, settings: LossSettings) -> Tensor:
    """f: the ratio where it is inside the clip range, else 0."""
    inside = (ratio >= settings.clip_min) & (ratio <= settings.clip_max)
    return torch.where(inside, ratio, 0)


def _score_centered(
    scores: TermScores, row: RowTensors, ratio_T: Tensor, settings: LossSettings
) -> Tensor:
    if scores.top_logprob_TK is None or row.top_logprobs_TK is None:
        raise DataError(
            "the samples carry no top sampler tokens, which score centering needs: set "
            "loss.num_sampler_logprobs >= 1, or loss.score_centering=false"
        )
    weights_TK = centering_weights(
        scores.top_logprob_TK.detach(),
        row.top_logprobs_TK.to(scores.top_logprob_TK.dtype),
        settings,
    )
    # An absent token has logprob -inf and weight 0: keep their product out of the sum.
    top_logprob_TK = scores.top_logprob_TK.masked_fill(row.top_logprobs_TK.isneginf(), 0)
    sampled_T = trusted_ratio(ratio_T, settings) * scores.logprob_T
    return -row.term_advantage_T * (sampled_T - (weights_TK * top_logprob_TK).sum(1))


def centering_weights(policy_TK: Tensor, sampler_TK: Tensor, settings: LossSettings) -> Tensor:
    """w_v of each top token, from the two logprobs; 0 where the token is absent (-inf)."""
    absent_TK = sampler_TK.isneginf()
    p_TK = policy_TK.exp().masked_fill(absent_TK, 0)
    q_TK = sampler_TK.exp()
    log_ratio_TK = (policy_TK - sampler_TK).masked_fill(absent_TK, 0)
    ratio_TK = log_ratio_TK.clamp(max=LOG_RATIO_LIMIT).exp()
    weights_TK = q_TK * trusted_ratio(ratio_TK, settings)
    if settings.centering_tail == "proportional":
        tail_q_T = (1 - q_TK.sum(1)).clamp(min=TAIL_FLOOR)
        tail_p_T = (1 - p_TK.sum(1)).clamp(min=TAIL_FLOOR)
        rho_T = tail_q_T / tail_p_T
        alpha_T = rho_T * trusted_ratio(1 / rho_T, settings)
        weights_TK = weights_TK - alpha_T[:, None] * p_TK
    return weights_TK


def _clipped(
    scores: TermScores, row: RowTensors, ratio_T: Tensor, settings: LossSettings
) -> Tensor:
    """The value is -min(...); its gradient r A grad log p flows where the min is not clipped."""
    advantage_T = row.term_advantage_T
    free_T = ratio_T * advantage_T
    clipped_T = ratio_T.clamp(1 - settings.epsilon, 1 + settings.epsilon_high) * advantage_T
    trusted_T = trusted_ratio(ratio_T, settings) != 0
    value_T = torch.where(trusted_T, torch.minimum(free_T, clipped_T), 0)
    weight_T = torch.where(trusted_T & (free_T <= clipped_T), free_T, 0)
    return -(value_T + weight_T * (scores.logprob_T - scores.logprob_T.detach()))


def _sums(
    scores: TermScores,
    row: RowTensors,
    log_ratio_T: Tensor,
    ratio_T: Tensor,
    settings: LossSettings,
) -> LossSums:
    difference_T = log_ratio_T.abs()
    below_T = (ratio_T < 1 - settings.epsilon).to(ratio_T.dtype)
    above_T = (ratio_T > 1 + settings.epsilon_high).to(ratio_T.dtype)
    # The clipped loss leaves a term alone only where clipping binds: see clip_ratio in the docs.
    if not settings.score_centering:
        below_T = below_T * (row.term_advantage_T < 0)
        above_T = above_T * (row.term_advantage_T > 0)
    masked_T = trusted_ratio(ratio_T, settings) == 0
    ratio, difference = observe(ratio_T), observe(difference_T)
    entries = {
        "sampling/sampling_logp_difference/mean": difference,
        "sampling/sampling_logp_difference/max": difference,
        "sampling/importance_sampling_ratio/min": ratio,
        "sampling/importance_sampling_ratio/mean": ratio,
        "sampling/importance_sampling_ratio/max": ratio,
        "sampling/masked_mean": observe_mean(masked_T.to(ratio_T.dtype)),
        "sampling/kl_k3": observe_mean(ratio_T - 1 - log_ratio_T),
        LossSums.RATIO_SQUARED: observe_mean(ratio_T.square()),
        "entropy": observe_mean(scores.entropy_T),
        "clip_ratio/region_mean": observe_mean(below_T + above_T),
        "clip_ratio/low_mean": observe_mean(below_T),
        "clip_ratio/low_min": observe(_sample_means(below_T, row)),
        "clip_ratio/high_mean": observe_mean(above_T),
        "clip_ratio/high_max": observe(_sample_means(above_T, row)),
    }
    if settings.score_centering and row.top_logprobs_TK is not None:
        entries["sampling/sampler_mass"] = observe_mean(row.top_logprobs_TK.exp().sum(1))
    for staleness, terms in row.terms_by_staleness.items():
        name = f"sampling/by_staleness/{staleness}/logp_difference"
        entries[name] = observe(difference_T[terms])
    return LossSums(entries)


def _sample_means(values_T: Tensor, row: RowTensors) -> Tensor:
    """Mean over the terms of each sample that has any."""
    count_M = torch.zeros(row.num_samples, dtype=values_T.dtype, device=values_T.device)
    total_M = count_M.index_add(0, row.term_sample_T, values_T)
    count_M = count_M.index_add(0, row.term_sample_T, torch.ones_like(values_T))
    return total_M[row.samples_with_terms] / count_M[row.samples_with_terms]
