"""`rollout`: from a prompt to scored samples, in the worker."""

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, Strict, model_validator

from asyncgrpo.config.sections.base import (
    Fraction,
    Kwargs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    Strings,
    as_list,
)
from asyncgrpo.config.sections.environments import EnvironmentSources


class RewardSource(Section):
    """A reward function and how much it counts."""

    path: str
    """`package.module:name`, or `./file.py:name` relative to the recipe."""
    name: str = ""
    """Its name in metrics; null = the function's."""
    weight: float = 1.0
    """Factor of its rewards in the sum."""
    timeout_s: PositiveFloat = 60.0
    """Longest time in seconds that it may take for one group."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keywords passed to every call."""

    @model_validator(mode="before")
    @classmethod
    def _named_after_its_function(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        path = fields.get("path")
        if fields.get("name") or not isinstance(path, str):
            return fields
        return fields | {"name": path.rpartition(":")[2]}


def _reward_source(entry: object) -> object:
    return {"path": entry} if isinstance(entry, str) else entry


RewardSources = Annotated[
    tuple[Annotated[RewardSource, BeforeValidator(_reward_source)], ...],
    Strict(strict=False),
    BeforeValidator(as_list),
]


class RolloutConfig(Section):
    """Generation and scoring of rollouts."""

    num_generations: Annotated[int, Field(ge=2)] = 8
    """Rollouts per prompt (G); advantages are relative to the group."""
    max_completion_length: PositiveInt = 2048
    """Most tokens generated per turn."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature; the trainer scales its logits by the same."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that sum to this probability; needs `top_k`; 1.0 = off."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest tokens; 0 = all."""
    min_p: Fraction | None = None
    """Least probability relative to the likeliest token; needs `top_k`; null = off."""
    stop: Strings = ()
    """Strings that end a turn, beside the model's own end tokens."""
    chat_template_kwargs: Kwargs = Field(default_factory=dict)
    """Keywords passed to the chat template, such as `enable_thinking: false`."""
    chat_template: str | None = None
    """A Jinja template, or a file that holds one; null = the tokenizer's."""
    max_tool_calling_iterations: PositiveInt | None = None
    """Most turns that may call tools; null = only the context limits them."""
    tools: Strings = ()
    """Tool functions by import path."""
    tool_timeout_s: PositiveFloat = 60.0
    """Longest time in seconds of one tool call; a longer one fails the rollout."""
    environments: EnvironmentSources = None
    """An environment class, or a function that makes an instance: an import path, {path, kwargs},
    or name -> one of these, chosen by the column `environment`."""
    environment_timeout_s: PositiveFloat = 300.0
    """Longest time in seconds to construct an environment, reset it or get its reward."""
    rewards: RewardSources = ()
    """Reward functions: import paths, or {path, name, weight, timeout_s, kwargs}."""
    advantage: str = "group_std"
    """The advantage of a rollout by the rewards of its group, built in or an import path. All take
    the group's mean off; group_std divides by its std, batch_std by that of the latest groups,
    max_rl by the mean, none_std by nothing; rloo takes off the mean of the others. Formulas, and a
    function of your own: docs/loss.md. A loop's `compute_advantages` replaces it."""
    max_concurrent_rollouts: PositiveInt = 512
    """Most rollouts at once in all workers, even if the server could take more."""
    max_staleness: NonNegativeInt = 4
    """Most policy versions a sample may be behind when it is trained; 0 = wait for every sync."""
    loop: str | None = None
    """A subclass of `AsyncRolloutLoop` by import path; null = `AsyncRolloutLoop`."""
    loop_args: Kwargs = Field(default_factory=dict)
    """Further attributes of the loop's `self.config`."""
    workers: PositiveInt = 1
    """Worker processes; they share the prompts without overlap, and the limits of the run."""
    rollout_worker_timeout: PositiveFloat = 300.0
    """Seconds the trainer waits for a silent worker before it gives up."""
    seed: Seed = 42
    """Seed of the prompts' order and of sampling."""
    on_stale: Literal["drop", "retry"] = "drop"
    """`drop` = a sample that is too stale is not trained."""
    failure_budget: Fraction = 0.05
    """The run stops when more than this share of the last 256 rollouts failed; a prompt that does
    not fit the context counts as a failure."""
