"""One rollout from beginning to end.

rent --reset--> the prompt, as this rollout sees it, and its tools
  --generate_one--> Rollout --get_reward--> environment reward --turns--> drafts of samples
"""

import time
from typing import cast

from asyncgrpo.errors import DataError, HookError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.group import Message, Messages, Rollout
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.observe import (
    is_terminated,
    observe_rollout,
    observe_tool_calls,
    observe_tool_rates,
)
from asyncgrpo.rollout.open_group import FinishedRollout, OpenGroup
from asyncgrpo.rollout.sampling.context import RolloutContext, enter_rollout
from asyncgrpo.rollout.sampling.samples import draft_samples
from asyncgrpo.rollout.sampling.seeds import environment_seed
from asyncgrpo.rollout.tools.environments import Episode


class RolloutRunner:
    """Runs rollouts of the recipe, one call each."""

    def __init__(self, inputs: Inputs, loop: AsyncRolloutLoop, recorder: Recorder) -> None:
        self._loop = loop
        self._tools = inputs.tools
        self._environments = inputs.environments
        self._stop_tokens = inputs.stop_tokens
        self._num_top_logprobs = inputs.config.loss.requested_logprobs
        self._seed = inputs.config.rollout.seed
        self._recorder = recorder

    async def run(self, group: OpenGroup, index: int) -> FinishedRollout:
        """Generates, judges and measures one rollout, in a task of its own.

        Raises:
            Exception: whatever its hooks raise.
        """
        context = RolloutContext(
            epoch=group.epoch,
            position=group.position,
            rollout=index,
            messages=group.prompt.messages,
            tools=list(self._tools),
            prompt_ids=group.prompt_ids,
        )
        enter_rollout(context)
        start = time.monotonic()
        try:
            finished = await self._in_environment(group, context)
        finally:
            observe_tool_calls(self._recorder, context.tool_use)
        observe_rollout(
            self._recorder,
            finished.rollout,
            finished.drafts,
            duration_s=time.monotonic() - start,
            terminated=is_terminated(finished.rollout, self._stop_tokens)
            and not context.tool_use.context_is_full,
        )
        observe_tool_rates(self._recorder, finished.rollout, context)
        return finished

    async def _in_environment(self, group: OpenGroup, context: RolloutContext) -> FinishedRollout:
        if self._environments is None or group.environment is None:
            return await self._generate(group, context, None)
        seed = environment_seed(self._seed, epoch=group.epoch, position=group.position)
        rented = self._environments.rent(
            group.environment, group.prompt.columns, seed=seed, recorder=self._recorder
        )
        async with rented as episode:
            return await self._generate(group, context, episode)

    async def _generate(
        self, group: OpenGroup, context: RolloutContext, episode: Episode | None
    ) -> FinishedRollout:
        if episode is not None:
            context.tools += episode.tools
            if episode.observation is not None:
                context.messages = with_observation(context.messages, episode.observation)
                context.prompt_ids = None  # this rollout's own
            elif not context.messages:
                raise DataError(
                    f"environment `{episode.kind.name}`: reset returned None, and the dataset "
                    "has no prompt; return the user's message"
                )
        messages = [dict(message) for message in context.messages]  # a hook may change it
        made = self._loop.generate_one(messages, list(context.tools), group.group_id)
        rollout = cast("object", await made)  # a user's hook may return anything
        if not isinstance(rollout, Rollout):
            raise HookError(
                f"{type(self._loop).__name__}.generate_one returned {rollout!r:.80}; expected an "
                "asyncgrpo.Rollout"
            )
        return FinishedRollout(
            index=context.rollout,
            rollout=rollout,
            drafts=draft_samples(rollout.turns, num_top_logprobs=self._num_top_logprobs),
            policy_version=context.policy.version if context.policy else group.model_version,
            generated_at=time.time(),
            messages=context.messages,
            env_reward=await self._judged(episode),
        )

    async def _judged(self, episode: Episode | None) -> tuple[type, float] | None:
        if episode is None or self._environments is None:
            return None
        reward = await self._environments.reward(episode, recorder=self._recorder)
        return None if reward is None else (episode.kind.cls, reward)


def with_observation(messages: Messages, observation: str) -> Messages:
    """The prompt with the observation in its last user message, or as a new one."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] == "user":
            return [*messages[:i], _appended(messages[i], observation), *messages[i + 1 :]]
    return [*messages, {"role": "user", "content": observation}]


def _appended(message: Message, observation: str) -> Message:
    content = message["content"]
    if isinstance(content, list):  # parts, as multimodal templates take them
        return message | {"content": [*content, {"type": "text", "text": observation}]}
    return message | {"content": f"{content}{observation}"}
