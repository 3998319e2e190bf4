"""The public records of the rollout loop: arguments and results of its hooks.

    TurnRecord  --turns of-->  Rollout  --rollouts of-->  RolloutGroup

A hook may fill them with lists, as users write them; the default loop fills the turn records
with numpy arrays and never makes a Python object per token.

Shape suffixes: O = output tokens of a turn, K = top sampler tokens, G = rollouts of a group,
c = candidates of all tokens, one after another.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int32

from asyncgrpo.records import FinishReason, Sample, Turn, VersionSpan

Message = dict[str, Any]
Messages = list[Message]
TokenIds = Sequence[int] | Int32[np.ndarray, "n"]


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The sampler's top K of each output token, as arrays."""

    ids: Int32[np.ndarray, "O K"]  # NO_TOKEN where absent
    logprobs: Float32[np.ndarray, "O K"]  # -inf where absent


@dataclass(frozen=True, slots=True)
class CandidateSets:
    """The tokens that each output token was drawn from, flat."""

    ids: Int32[np.ndarray, "c"]
    counts: Int32[np.ndarray, "O"]  # 0 = the full vocabulary


@dataclass(slots=True)
class TurnRecord:
    """One request to the sampler: the whole prompt sent, and the answer."""

    prompt_ids: TokenIds
    output_ids: TokenIds
    output_log_probs: Sequence[float] | Float32[np.ndarray, "O"] = field(
        default_factory=list[float]
    )
    output_mask: Sequence[int] | None = None  # 1 = train on the token; None = on all of them
    # Per output token the tokens it was drawn from, under top_k, top_p or min_p; None = all.
    output_sampling_mask: Sequence[Sequence[int]] | CandidateSets | None = None
    output_sampler_logprobs: Sequence[dict[int, float]] | TopLogprobs | None = None
    finish_reason: FinishReason | None = None  # None where the hook does not say
    version_spans: tuple[VersionSpan, ...] = ()  # over output_ids


def turn_record(prompt_ids: TokenIds, turn: Turn) -> TurnRecord:
    """The record of a turn as the sampler returned it."""
    top = None
    if turn.top_ids is not None and turn.top_logprobs is not None:
        top = TopLogprobs(turn.top_ids, turn.top_logprobs)
    candidates = None
    if turn.candidate_ids is not None and turn.candidate_counts is not None:
        candidates = CandidateSets(turn.candidate_ids, turn.candidate_counts)
    return TurnRecord(
        prompt_ids=prompt_ids,
        output_ids=turn.output_ids,
        output_log_probs=turn.logprobs,
        output_sampling_mask=candidates,
        output_sampler_logprobs=top,
        finish_reason=turn.finish_reason,
        version_spans=turn.version_spans,
    )


@dataclass(slots=True)
class Rollout:
    """One whole conversation generated for a prompt."""

    completion: Messages  # the messages after the prompt
    completion_ids: list[int]
    turns: list[TurnRecord]
    tool_call_count: int = 0
    tool_failure_count: int = 0
    reward: float | None = None  # added to the rewards of the other sources
    rollout_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class RolloutGroup:
    """The rollouts of one prompt, scored together; every list has one entry per rollout."""

    rollouts: list[Rollout]
    prompts: list[Messages]
    reward_kwargs: dict[str, list[Any]]  # the prompt's other columns
    model_version: int  # policy version when its first rollout started
    group_id: int  # counts the groups of this worker from 0
    row_index: int  # of the dataset
    env_rewards: list[tuple[type, float] | None]
    queued_at: float = 0.0  # time.monotonic() when it was queued for scoring
    # What each rollout will train: one sample, or several where it forked; for reading.
    completions_sequences: list[list[Sample]] = field(default_factory=list[list[Sample]])
    rewards: Float64[np.ndarray, "G"] | None = None  # totals; NaN where no source scored

    @property
    def completions(self) -> list[Messages]:
        return [rollout.completion for rollout in self.rollouts]

    @property
    def completions_ids(self) -> list[list[int]]:
        return [rollout.completion_ids for rollout in self.rollouts]

    @property
    def tool_call_counts(self) -> list[int]:
        return [rollout.tool_call_count for rollout in self.rollouts]

    @property
    def tool_failure_counts(self) -> list[int]:
        return [rollout.tool_failure_count for rollout in self.rollouts]

    @property
    def rollout_rewards(self) -> list[float | None]:
        return [rollout.reward for rollout in self.rollouts]
