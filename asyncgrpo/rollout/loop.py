"""`AsyncRolloutLoop`: the steps of a rollout that a user may replace.

    filter_prompt -> generate_one -> generate_one_turn -> (rewards) -> compute_advantages

Subclass it, override hooks, and name the subclass in `rollout.loop`. All hooks run on the worker's
event loop, `setup` before the first prompt and `close` at the end.
"""

import inspect
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxtyping import Float64

from asyncgrpo.config import Config
from asyncgrpo.errors import ConfigError, HookError
from asyncgrpo.process.imports import load_object
from asyncgrpo.rollout.chat.chat import Chat, Tokenizer
from asyncgrpo.rollout.chat.context_room import ContextFullError
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.group import Messages, Rollout, RolloutGroup, TokenIds, TurnRecord
from asyncgrpo.rollout.hooks.threads import in_daemon_thread
from asyncgrpo.rollout.sampling.context import current_rollout
from asyncgrpo.rollout.sampling.sampler import Sampler
from asyncgrpo.rollout.scoring.advantages import AdvantageRule
from asyncgrpo.rollout.tools.conversation import Conversation
from asyncgrpo.rollout.tools.tools import Toolbox, ToolUse

log = logging.getLogger(__name__)

_PLAIN_HOOKS = ("filter_prompt", "compute_advantages")  # called without `await`


class LoopConfig(SimpleNamespace):
    """The configuration as hooks see it: leaves by their own name, `loop_args` beside them.

    `config.temperature` is `rollout.temperature`; where two sections have a leaf of one name,
    `rollout`'s wins. The sections are there too: `config.trainer.learning_rate`.
    """

    def __init__(self, config: Config) -> None:
        sections = {name: section for name, section in config if name != "rollout"}
        leaves: dict[str, Any] = {}
        for section in (*sections.values(), config.rollout):
            leaves |= dict(section)
        taken = {*sections, "rollout", *dict(config.rollout)} & set(config.rollout.loop_args)
        if taken:
            raise ConfigError(
                f"rollout.loop_args.{min(taken)}: the configuration has a key of this name "
                "already; choose another"
            )
        super().__init__(
            **(leaves | sections | {"rollout": config.rollout} | dict(config.rollout.loop_args))
        )


class AsyncRolloutLoop:
    """Generates a prompt's rollouts and computes their advantages; GRPO by default."""

    def __init__(self, config: Config, tokenizer: Tokenizer, chat: Chat, sampler: Sampler) -> None:
        self.config: Any = LoopConfig(config)
        self.tokenizer: Any = tokenizer
        self._chat = chat
        self._sampler = sampler
        self._advantage_rule = AdvantageRule(config.rollout.advantage)
        self._max_calling_turns = config.rollout.max_tool_calling_iterations
        self._tool_timeout_s = config.rollout.tool_timeout_s

    async def setup(self) -> None:
        """Makes objects for the other hooks, such as clients."""

    async def close(self) -> None:
        """Releases the objects of `setup`; runs after a failure too."""

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:  # noqa: ARG002 - a hook's signature
        """True to generate for this prompt in this epoch; False resolves it as filtered."""
        return True

    async def generate_one(
        self,
        prompt: Messages,
        tools: list[Callable[..., Any]],
        group_id: int = 0,  # noqa: ARG002 - a hook's signature
    ) -> Rollout:
        """Generates one rollout: turns until none calls a tool or the context is full."""
        if tools:
            use = ToolUse()
            try:
                toolbox = Toolbox(tools, timeout_s=self._tool_timeout_s)
                return await self._converse(prompt, toolbox, use)
            finally:
                current_rollout().tool_use.add(use)
        turn = await self.generate_one_turn(await self._render(prompt, tools, ()))
        text = self._chat.text(turn.output_ids)
        return Rollout(
            completion=[{"role": "assistant", "content": text}],
            completion_ids=np.asarray(turn.output_ids).tolist(),
            turns=[turn],
        )

    async def generate_one_turn(self, prompt_ids: TokenIds) -> TurnRecord:
        """Samples one reply to the whole prompt, with the recipe's parameters."""
        return await self._sampler.turn(prompt_ids)

    def compute_advantages(self, group: RolloutGroup) -> Float64[np.ndarray, "G"]:
        """The advantage of each rollout in its group, from the totals in `group.rewards`."""
        assert group.rewards is not None, "advantages come after the rewards"
        return self._advantage_rule.of(group.rewards)

    @property
    def policy_name(self) -> str:
        """The served name of this rollout's policy, for other clients of the server."""
        rollout = current_rollout()
        rollout.policy_is_used = True
        return self._sampler.policy_of(rollout).name

    async def _converse(self, prompt: Messages, toolbox: Toolbox, use: ToolUse) -> Rollout:
        conversation = Conversation(list(prompt))
        if not self._chat.reads_tools:  # tools of a hook's own
            await in_daemon_thread(self._chat.prepare_tools, toolbox.schemas)
        prompt_ids = await self._render(prompt, toolbox.functions, toolbox.schemas)
        while True:
            turn = await self.generate_one_turn(prompt_ids)
            reply = self._chat.reply(turn.output_ids, toolbox.schemas)
            conversation.add_reply(turn, reply)
            if not reply.calls:
                break
            if len(use.calls_per_reply) == self._max_calling_turns:
                use.exhausted = True
                break
            results = await toolbox.answer(reply.calls, use)
            conversation.add_results(results)
            try:
                prompt_ids = await self._continued(conversation, len(results), toolbox.schemas)
            except ContextFullError as full:
                log.info("a conversation ends here: %s", full)
                use.context_is_full = True
                break
        return conversation.rollout(use)

    async def _continued(
        self, conversation: Conversation, num_results: int, schemas: Sequence[ToolSchema]
    ) -> TokenIds:
        """The prompt after the last results. Raises ContextFullError."""
        prompt_ids = await in_daemon_thread(
            self._chat.continued,
            conversation.turns[-1],
            conversation.rendered,
            num_results,
            schemas,
        )
        if self._sampler.room_for(prompt_ids) <= 0:
            raise ContextFullError(
                f"{len(conversation.turns)} turns and the results of their tools fill the context: "
                "raise server.max_model_len, or lower rollout.max_tool_calling_iterations"
            )
        return prompt_ids

    async def _render(
        self, prompt: Messages, tools: list[Callable[..., Any]], schemas: Sequence[ToolSchema]
    ) -> TokenIds:
        rollout = current_rollout()
        shared = rollout.prompt_ids
        if shared is not None and prompt == rollout.messages and tools == rollout.tools:
            return shared
        return await in_daemon_thread(self._chat.render, prompt, schemas)


def loop_class(path: str | None) -> type[AsyncRolloutLoop]:
    """The class named by `rollout.loop`.

    Raises:
        HookError: it cannot be loaded or is no `AsyncRolloutLoop`.
    """
    if path is None:
        return AsyncRolloutLoop
    found = load_object(path, key="rollout.loop")
    if not (isinstance(found, type) and issubclass(found, AsyncRolloutLoop)):
        raise HookError(
            f"rollout.loop: `{path}` is {found!r:.80}; expected a subclass of "
            "asyncgrpo.AsyncRolloutLoop"
        )
    for name in _PLAIN_HOOKS:
        if inspect.iscoroutinefunction(getattr(found, name)):
            raise HookError(
                f"rollout.loop: `{found.__name__}.{name}` is `async def`; expected a plain `def`"
            )
    return found
