"""One rollout from beginning to end: an environment for it, the hook, what its turns become.

rent --reset--> the prompt, as this rollout sees it, and its tools
  --generate_one--> Rollout --get_reward--> environment reward --turns--> drafts of samples
"""

import time
from typing import cast

from asyncgrpo.errors import DataError, HookError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.group import Message, Messages, Rollout
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.open_group import FinishedRollout, OpenGroup
from asyncgrpo.rollout.sampling.context import RolloutContext, enter_rollout
from asyncgrpo.rollout.sampling.samples import draft_samples
from asyncgrpo.rollout.sampling.seeds import environment_seed
from asyncgrpo.rollout.tools.environments import Environments, Episode
from asyncgrpo.rollout.tools.tools import ToolFunction


class RolloutRunner:
    """Runs rollouts of the recipe, one call each."""

    def __init__(
        self,
        *,
        loop: AsyncRolloutLoop,
        tools: tuple[ToolFunction, ...],
        environments: Environments | None,
        recorder: Recorder,
        num_top_logprobs: int,
        seed: int,
    ) -> None:
        self._loop = loop
        self._tools = tools
        self._environments = environments
        self._recorder = recorder
        self._num_top_logprobs = num_top_logprobs
        self._seed = seed

    def context(self, group: OpenGroup, index: int) -> RolloutContext:
        """What the hooks of rollout `index` of `group` need; the task that runs it enters it."""
        return RolloutContext(
            epoch=group.epoch,
            position=group.position,
            rollout=index,
            messages=group.prompt.messages,
            tools=list(self._tools),
            prompt_ids=group.prompt_ids,
        )

    async def run(self, group: OpenGroup, context: RolloutContext) -> FinishedRollout:
        """Generate and judge one rollout; raises whatever its hooks do."""
        enter_rollout(context)
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
    """The prompt with what `reset` said at the end of its last user message, or as one."""
    for i in range(len(messages) - 1, -1, -1):
        if messages[i]["role"] == "user":
            return [*messages[:i], _appended(messages[i], observation), *messages[i + 1 :]]
    return [*messages, {"role": "user", "content": observation}]


def _appended(message: Message, observation: str) -> Message:
    content = message["content"]
    if isinstance(content, list):  # parts, as multimodal templates take them
        return message | {"content": [*content, {"type": "text", "text": observation}]}
    return message | {"content": f"{content}{observation}"}
