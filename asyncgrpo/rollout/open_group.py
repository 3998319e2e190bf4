"""A group on its way: from its dispatch to the message that the trainer gets.

OpenGroup --its last rollout ends--> FinishedGroup --scored--> GroupReady | PromptDropped

Rollouts end in any order. A FinishedGroup holds them by index, which is the order of rewards,
advantages and samples.

Shape suffix: G = the finished rollouts of the group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int32
from msgspec.structs import replace

from asyncgrpo.channel.messages import DropReason, GroupReady, PromptDropped
from asyncgrpo.records import Sample, SampleKey
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Messages, Rollout, RolloutGroup
from asyncgrpo.rollout.sampling.samples import Drafts
from asyncgrpo.rollout.tools.environment_kind import EnvironmentKind


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A rollout that came to its end."""

    index: int  # in its group
    rollout: Rollout
    drafts: Drafts
    policy_version: int  # at its first turn
    generated_at: float  # time.time()
    messages: Messages  # the prompt, with the observation of its environment
    env_reward: tuple[type, float] | None = None  # the environment's class and its reward


@dataclass(slots=True)
class OpenGroup:
    """A group whose rollouts are under way."""

    group_id: int
    epoch: int
    position: int
    prompt: Prompt
    prompt_ids: Int32[np.ndarray, "P"] | None  # None where each rollout has a prompt of its own
    model_version: int  # when its first rollout started
    num_rollouts: int
    environment: EnvironmentKind | None = None
    # As they end, in any order; None for each that failed.
    ended: list[FinishedRollout | None] = field(default_factory=list[FinishedRollout | None])

    @property
    def is_over(self) -> bool:
        """True once each of its rollouts came to its end or failed."""
        return len(self.ended) == self.num_rollouts

    def close(self, *, queued_at: float) -> "FinishedGroup":
        """The group with the rollouts that came to their end."""
        finished = (rollout for rollout in self.ended if rollout is not None)
        return FinishedGroup(self, tuple(sorted(finished, key=lambda each: each.index)), queued_at)


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group whose rollouts ended, to be scored."""

    opened: OpenGroup
    rollouts: tuple[FinishedRollout, ...]  # those that did not fail, by index
    queued_at: float  # time.monotonic() when it was queued for scoring

    @property
    def num_tokens(self) -> int:
        """Raw sample tokens of its rollouts."""
        return sum(finished.drafts.num_tokens for finished in self.rollouts)

    @property
    def has_trained_token(self) -> bool:
        """True if any of its rollouts has a token to train."""
        return any(finished.drafts.drafts for finished in self.rollouts)

    def to_score(self) -> RolloutGroup:
        """The group as rewards and hooks see it."""
        opened = self.opened
        return RolloutGroup(
            rollouts=[finished.rollout for finished in self.rollouts],
            prompts=[[dict(m) for m in finished.messages] for finished in self.rollouts],
            reward_kwargs={
                name: [value] * len(self.rollouts) for name, value in opened.prompt.columns.items()
            },
            model_version=opened.model_version,
            group_id=opened.group_id,
            row_index=opened.prompt.row_index,
            env_rewards=[finished.env_reward for finished in self.rollouts],
            queued_at=self.queued_at,
            completions_sequences=[[*finished.drafts.drafts] for finished in self.rollouts],
        )

    def ready(
        self,
        advantages_G: Float64[np.ndarray, "G"],
        rewards_G: Float64[np.ndarray, "G"],
        *,
        offered_at: float,
    ) -> GroupReady:
        """The group's samples, each with its rollout's advantage and reward."""
        opened = self.opened
        samples: list[Sample] = []
        given = zip(self.rollouts, advantages_G.tolist(), rewards_G.tolist(), strict=True)
        for finished, advantage, reward in given:
            for draft in finished.drafts.drafts:
                versions = (span.version for span in draft.version_spans)
                sample = replace(
                    draft,
                    key=SampleKey(opened.epoch, opened.position, len(samples)),
                    advantage=advantage,
                    policy_version=min(versions, default=finished.policy_version),
                    rollout=finished.index,
                    generated_at=finished.generated_at,
                    queued_at=offered_at,
                    reward=None if math.isnan(reward) else reward,
                )
                samples.append(sample)
        return GroupReady(opened.epoch, opened.position, opened.prompt.row_index, tuple(samples))

    def dropped(self, reason: DropReason) -> PromptDropped:
        """The message that nothing of the group will be trained."""
        return PromptDropped(self.opened.epoch, self.opened.position, reason)


GroupOutcome = GroupReady | PromptDropped


def samples_of(outcome: GroupOutcome) -> Sequence[Sample]:
    """The samples that the trainer is offered."""
    return outcome.samples if isinstance(outcome, GroupReady) else ()
