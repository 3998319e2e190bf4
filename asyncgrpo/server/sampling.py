"""How every turn of a run is drawn: `rollout` and `loss` of the recipe, as a request says it."""

from asyncgrpo.config import Config
from asyncgrpo.records import SamplingParams


def sampling_params(config: Config) -> SamplingParams:
    """How every turn of the run is drawn."""
    rollout = config.rollout
    return SamplingParams(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p or 0.0,
        repetition_penalty=rollout.repetition_penalty,
        stop=rollout.stop,
        num_logprobs=config.loss.requested_logprobs,
    )
