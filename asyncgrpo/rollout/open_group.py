"""A group on its way: from its dispatch to what the trainer hears of it.

dispatch --> OpenGroup --each rollout ends--> finished --scored--> GroupReady | PromptDropped

Shape suffix: G = the finished rollouts of the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int32

from asyncgrpo.channel.messages import GroupReady, PromptDropped
from asyncgrpo.records import Sample, SampleKey
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Messages, Rollout, RolloutGroup
from asyncgrpo.rollout.sampling.samples import Draft, Drafts
from asyncgrpo.rollout.tools.environment_kind import EnvironmentKind

LEAST_ROLLOUTS = 2  # advantages are relative to another rollout


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A rollout that came to its end."""

    index: int  # in its group
    rollout: Rollout
    drafts: Drafts
    policy_version: int  # at its first turn
    generated_at: float  # time.time()
    messages: Messages  # the prompt, what its environment said included
    env_reward: tuple[type, float] | None = None  # the environment's class and its reward


@dataclass(slots=True)
class OpenGroup:
    """A group whose prompt was dispatched and is not yet resolved or offered."""

    group_id: int
    epoch: int
    position: int
    prompt: Prompt
    prompt_ids: Int32[np.ndarray, "P"] | None  # None where each rollout has a prompt of its own
    model_version: int  # when its first rollout started
    unfinished: int
    finished: list[FinishedRollout] = field(default_factory=list[FinishedRollout])
    queued_at: float = 0.0  # time.monotonic() when it was queued for scoring
    environment: EnvironmentKind | None = None

    @property
    def finished_tokens(self) -> int:
        """Raw sample tokens of the finished rollouts."""
        return sum(finished.drafts.num_tokens for finished in self.finished)

    def to_score(self) -> RolloutGroup:
        """The finished rollouts, in their order, as rewards and hooks see them."""
        self.finished.sort(key=lambda finished: finished.index)
        num_rollouts = len(self.finished)
        return RolloutGroup(
            rollouts=[finished.rollout for finished in self.finished],
            prompts=[[dict(m) for m in finished.messages] for finished in self.finished],
            reward_kwargs={
                name: [value] * num_rollouts for name, value in self.prompt.columns.items()
            },
            model_version=self.model_version,
            group_id=self.group_id,
            row_index=self.prompt.row_index,
            env_rewards=[finished.env_reward for finished in self.finished],
            queued_at=self.queued_at,
        )


GroupOutcome = GroupReady | PromptDropped


def ready(
    group: OpenGroup, advantages_G: Float64[np.ndarray, "G"], *, queued_at: float
) -> GroupReady:
    """The group's samples, each with its rollout's advantage."""
    samples: list[Sample] = []
    for finished, advantage in zip(group.finished, advantages_G.tolist(), strict=True):
        for draft in finished.drafts.drafts:
            key = SampleKey(group.epoch, group.position, len(samples))
            samples.append(_sample(draft, key, finished, advantage, queued_at))
    return GroupReady(
        epoch=group.epoch,
        position=group.position,
        row_index=group.prompt.row_index,
        samples=tuple(samples),
    )


def samples_of(outcome: GroupOutcome) -> Sequence[Sample]:
    """What the trainer is offered."""
    return outcome.samples if isinstance(outcome, GroupReady) else ()


def _sample(
    draft: Draft, key: SampleKey, finished: FinishedRollout, advantage: float, queued_at: float
) -> Sample:
    versions = [span.version for span in draft.version_spans]
    return Sample(
        key=key,
        input_ids=draft.input_ids,
        trained=draft.trained,
        sampler_logprobs=draft.sampler_logprobs,
        advantage=advantage,
        policy_version=min(versions, default=finished.policy_version),
        top_ids=draft.top_ids,
        top_logprobs=draft.top_logprobs,
        version_spans=draft.version_spans,
        rollout=finished.index,
        generated_at=finished.generated_at,
        queued_at=queued_at,
        candidate_ids=draft.candidate_ids,
        candidate_counts=draft.candidate_counts,
    )
