"""The loss of a row: score centering, or the clipped surrogate.

Pure; its metrics are given as sums.

    r = p(o) / q(o)      policy over sampler, of the sampled token o, both over the term's
                         candidates at the same temperature
    w(r)                 what the correction makes of it (`correction`); token_mask: r inside
                         [clip_min, clip_max], else 0

    score centering   grad L = - 1/D sum_t A ( w(r) grad log p(o)
                                              - sum_{v in top K} w_v grad log p(v) )
                      w_v = q_v w(p_v / q_v)                             tail: none
                      w_v = q_v w(p_v / q_v) - alpha p_v                 tail: proportional
                      alpha = rho w(1 / rho),  rho = max(1 - Q, eps) / max(1 - P, eps)
                      P, Q = the head's mass under p, q
    otherwise         L = - 1/D sum_t [kept] min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)
                          for what only masks: token_mask, geometric_mask, none
                      grad L = - 1/D sum_t A w grad log p(o)
                          for what weighs: token_clip, sequence_mask, icepop, published as factors
                          of a clipped loss in p / p_old. A sample trains in one step only, so
                          p_old = p, that ratio is 1 and its clip never binds

    experts           + 1/D c n b      b = load-balancing loss of the row, c = its coefficient,
                                       n = trained tokens of the row

D, the denominator, is the caller's: a term that is masked still counts in it. Weights carry no
gradient: they multiply log p, whose gradient the formulas name. Over the rows that D covers, the
last line is c times their mean b, each weighted by its trained tokens as the rest of the loss is.

Letters: T terms, K top sampler tokens, M samples.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asyncgrpo.config import known
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.errors import DataError
from asyncgrpo.training.loss.correction import (
    LOG_RATIO_LIMIT,
    Correction,
    RatioLimits,
    Ratios,
    ratio,
)
from asyncgrpo.training.loss.loss_sums import LossSums, observe, observe_mean
from asyncgrpo.training.model.forward import TermScores
from asyncgrpo.training.model.row_tensors import RowTensors

TAIL_FLOOR = 1e-6  # least mass outside the top K: keeps rho finite when K covers everything


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss section of the recipe, as the formulas need it."""

    score_centering: bool
    correction: Correction
    limits: RatioLimits
    centering_tail: Literal["none", "proportional"]
    router_aux_loss_coef: float

    @classmethod
    def from_config(cls, config: LossConfig, router_aux_loss_coef: float = 0.0) -> "LossSettings":
        """The recipe's settings and the policy's coefficient.

        Raises:
            HookError: `loss.correction` names a function that cannot be used.
        """
        return cls(
            score_centering=config.score_centering,
            correction=Correction.named(config.correction),
            limits=RatioLimits(
                clip_min=config.vllm_importance_sampling_clip_min,
                clip_max=config.vllm_importance_sampling_clip_max,
                epsilon=config.epsilon,
                epsilon_high=known(config.epsilon_high),
            ),
            centering_tail=config.centering_tail,
            router_aux_loss_coef=router_aux_loss_coef,
        )

    @property
    def clips(self) -> bool:
        """True if a term outside the trust region may have no gradient."""
        return not self.score_centering and self.correction.is_gate

    def weight(self, ratios: Ratios) -> Tensor:
        """The correction's weights."""
        return self.correction.weight(ratios, self.limits)


def policy_loss(
    scores: TermScores, row: RowTensors, settings: LossSettings, denominator: float | Tensor
) -> tuple[Tensor, LossSums]:
    """The row's part of the loss, and the sums its metrics come from.

    Args:
        scores: The policy's scores of the row's terms.
        row: The sampler's scores of them.
        settings: The kind of loss.
        denominator: Trained tokens of the micro-batch over all ranks, or of the step.

    Raises:
        DataError: Score centering without top sampler tokens.
    """
    if not row.term_target_T.numel():
        return scores.logprob_T.sum(), LossSums({})
    log_ratio_T = (scores.logprob_T.detach() - row.term_sampler_logprob_T).clamp(
        -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT
    )
    ratios = Ratios.of(log_ratio_T, row)
    weight_T = settings.weight(ratios)
    if settings.score_centering:
        loss_T = _score_centered(scores, row, ratios, weight_T, settings)
    else:
        loss_T = _uncentered(scores, ratios, weight_T, settings)
    loss = loss_T.sum() / denominator
    if scores.balance is not None:
        weight = settings.router_aux_loss_coef * row.num_trained
        loss = loss + weight * scores.balance / denominator
    with torch.no_grad():
        sums = _sums(scores, row, log_ratio_T, weight_T != 0, settings)
        sums.entries[LossSums.UNSOUND] = observe(_unsound(loss_T, scores, ratios))
    return loss, sums


def _unsound(loss_T: Tensor, scores: TermScores, ratios: Ratios) -> Tensor:
    """1 for each term whose scores are finite and whose loss is not."""
    sound_T = scores.logprob_T.isfinite() & ratios.log_ratio.isfinite() & ratios.log_rest.isfinite()
    return (sound_T & ~loss_T.isfinite()).to(torch.float64)


def _score_centered(
    scores: TermScores, row: RowTensors, ratios: Ratios, weight_T: Tensor, settings: LossSettings
) -> Tensor:
    if scores.top_logprob_TK is None or row.top_logprobs_TK is None:
        raise DataError(
            "the samples carry no top sampler tokens, which score centering needs: set "
            "loss.num_sampler_logprobs >= 1, or loss.score_centering=false"
        )
    policy_TK = scores.top_logprob_TK.detach()
    sampler_TK = row.top_logprobs_TK.to(policy_TK.dtype)
    weights_TK = centering_weights(policy_TK, sampler_TK, ratios, settings)
    # An absent token has logprob -inf and weight 0: keep their product out of the sum.
    top_logprob_TK = scores.top_logprob_TK.masked_fill(_absent(policy_TK, sampler_TK), 0)
    sampled_T = weight_T * scores.logprob_T
    return -row.term_advantage_T * (sampled_T - (weights_TK * top_logprob_TK).sum(1))


def centering_weights(
    policy_TK: Tensor, sampler_TK: Tensor, ratios: Ratios, settings: LossSettings
) -> Tensor:
    """The w_v of each top token; 0 where the token is absent (-inf)."""
    absent_TK = _absent(policy_TK, sampler_TK)
    p_TK = policy_TK.exp().masked_fill(absent_TK, 0)
    q_TK = sampler_TK.exp().masked_fill(absent_TK, 0)
    log_ratio_TK = (policy_TK - sampler_TK).masked_fill(absent_TK, 0)
    weights_TK = q_TK * settings.weight(ratios.had(log_ratio_TK))
    if settings.centering_tail == "proportional":
        tail_q_T = (1 - q_TK.sum(1)).clamp(min=TAIL_FLOOR)
        tail_p_T = (1 - p_TK.sum(1)).clamp(min=TAIL_FLOOR)
        rho_T = tail_q_T / tail_p_T
        alpha_T = rho_T * settings.weight(ratios.had(-rho_T.log()))
        weights_TK = weights_TK - alpha_T[:, None] * p_TK
    return weights_TK


def _absent(policy_TK: Tensor, sampler_TK: Tensor) -> Tensor:
    """The mask of tokens that the sampler did not report or the term cannot draw."""
    return sampler_TK.isneginf() | policy_TK.isneginf()


def _uncentered(
    scores: TermScores, ratios: Ratios, weight_T: Tensor, settings: LossSettings
) -> Tensor:
    """The clipped surrogate; `factor_T` is the factor of grad log p in its gradient."""
    limits = settings.limits
    if settings.correction.is_gate:
        free_T = ratios.token * ratios.advantage
        clipped_T = ratios.token.clamp(1 - limits.epsilon, 1 + limits.epsilon_high)
        clipped_T = clipped_T * ratios.advantage
        kept_T = weight_T != 0
        value_T = torch.where(kept_T, torch.minimum(free_T, clipped_T), 0)
        factor_T = torch.where(kept_T & (free_T <= clipped_T), free_T, 0)
    else:
        value_T = factor_T = weight_T * ratios.advantage
    return -(value_T + factor_T * (scores.logprob_T - scores.logprob_T.detach()))


def _sums(
    scores: TermScores,
    row: RowTensors,
    log_ratio_T: Tensor,
    kept_T: Tensor,
    settings: LossSettings,
) -> LossSums:
    ratio_T = ratio(log_ratio_T)
    difference_T = log_ratio_T.abs()
    below_T = (ratio_T < 1 - settings.limits.epsilon).to(ratio_T.dtype)
    above_T = (ratio_T > 1 + settings.limits.epsilon_high).to(ratio_T.dtype)
    # The clipped loss leaves a term alone only where clipping binds: see clip_ratio in the docs.
    if settings.clips:
        below_T = below_T * (row.term_advantage_T < 0)
        above_T = above_T * (row.term_advantage_T > 0)
    observed, difference = observe(ratio_T), observe(difference_T)
    entries = {
        "sampling/sampling_logp_difference/mean": difference,
        "sampling/sampling_logp_difference/max": difference,
        "sampling/importance_sampling_ratio/min": observed,
        "sampling/importance_sampling_ratio/mean": observed,
        "sampling/importance_sampling_ratio/max": observed,
        "sampling/masked_mean": observe_mean((~kept_T).to(ratio_T.dtype)),
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
    if scores.balance is not None:
        entries["aux_loss"] = observe_mean(scores.balance.expand(row.num_trained))
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
