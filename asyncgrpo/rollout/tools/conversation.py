"""A conversation with tools as it grows, for rewards and for the next prompt.

    prompt --turn--> reply --calls--> results --next prompt--> turn --> reply ...

The template renders replies as the policy wrote them, calls included; rewards see the calls in
`tool_calls`, as chat APIs write them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncgrpo.rollout.chat.reply_parsing import Reply
from asyncgrpo.rollout.group import Message, Messages, Rollout, TurnRecord
from asyncgrpo.rollout.tools.tools import ToolUse


@dataclass(slots=True)
class Conversation:
    """The messages and turns so far."""

    rendered: Messages  # the prompt and all later messages, as the template gets them
    completion: Messages = field(default_factory=list[Message])
    turns: list[TurnRecord] = field(default_factory=list[TurnRecord])

    def add_reply(self, turn: TurnRecord, reply: Reply) -> None:
        """The policy replied."""
        self.turns.append(turn)
        self.completion.append(reply.message)
        self.rendered.append({"role": "assistant", "content": reply.text})

    def add_results(self, results: Sequence[Message]) -> None:
        """Its tools answered."""
        self.completion += results
        self.rendered += results

    def rollout(self, use: ToolUse) -> Rollout:
        """The conversation as a rollout; its ids are those that the policy generated."""
        generated = [np.asarray(turn.output_ids, np.int32) for turn in self.turns]
        return Rollout(
            completion=self.completion,
            completion_ids=np.concatenate(generated).tolist(),
            turns=self.turns,
            tool_call_count=len(use.calls),
            tool_failure_count=use.num_failures,
        )
