"""The sampling parameters of a run: `rollout` and `loss` of the recipe, for a request."""

from asyncgrpo.config import Config
from asyncgrpo.records import SamplingParams


def sampling_params(config: Config) -> SamplingParams:
    """The sampling parameters of every turn of the run."""
    rollout = config.rollout
    return SamplingParams(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p or 0.0,
        stop=rollout.stop,
        num_logprobs=config.loss.requested_logprobs,
    )
