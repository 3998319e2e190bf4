"""`loss`: from logprobs and advantages to the number that is minimised."""

from typing import Annotated, Literal

from pydantic import Field

from asyncgrpo.config.sections.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, Section


class LossConfig(Section):
    """The policy-gradient loss."""

    score_centering: bool = True
    """Subtract the expected score over the sampler's top tokens; false = the clipped loss."""
    num_sampler_logprobs: NonNegativeInt = 8
    """Top tokens (K) whose logprobs the sampler reports at every position, for the centering."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The clipped loss lets the ratio fall to 1 - epsilon."""
    epsilon_high: PositiveFloat | None = None
    """The clipped loss lets the ratio rise to 1 + epsilon_high; null = epsilon."""
    vllm_importance_sampling_clip_min: NonNegativeFloat = 0.5
    """Least policy/sampler ratio; `correction` treats the ratios below."""
    vllm_importance_sampling_clip_max: PositiveFloat = 5.0
    """Highest policy/sampler ratio; `correction` treats the ratios above."""
    centering_tail: Literal["none", "proportional"] = "none"
    """Treatment of the probability outside the top K: `none` = ignored; `proportional` = formula in
    docs/loss.md."""
    normalization: Literal["microbatch", "step"] = "microbatch"
    """Divide by the trained tokens of each micro-batch, or of the whole step."""
    correction: str = "token_mask"
    """The weight of a token by its policy/sampler ratio, built in or an import path. token_mask,
    icepop: a token outside the range is left out; token_clip: its ratio is moved to the bound;
    sequence_mask, geometric_mask: the sample is left out, by the product or the geometric mean of
    its ratios; none: ratios do not weigh. Formulas, and a function of your own: docs/loss.md."""

    @property
    def requested_logprobs(self) -> int:
        """Top logprobs that each request asks for: K, or none where nothing is centered."""
        return self.num_sampler_logprobs if self.score_centering else 0
