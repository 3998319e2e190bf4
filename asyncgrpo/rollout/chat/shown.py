"""The check that a chat template shows every message of a prompt to the model.

    messages --contents replaced by marks--> template --> every mark is in the text

A template may leave out a role that it does not know, and no error says so. What it leaves out
depends on the shape of a conversation, not on its words, so each shape is rendered once.
"""

from collections.abc import Sequence
from typing import Protocol

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.group import Message, Messages

MARK = "the-text-of-message-{}-"
MOST_SHAPES = 4096  # remembered

Shape = tuple[tuple[str, bool], ...]


class RenderText(Protocol):
    """A template at work on one conversation."""

    def __call__(self, messages: Messages, schemas: Sequence[ToolSchema]) -> str: ...


class ShownMessages:
    """Checks conversations, and remembers the shapes that are shown whole."""

    def __init__(self, render: RenderText) -> None:
        self._render = render
        self._shown: set[tuple[bool, Shape]] = set()

    def check(self, messages: Messages, schemas: Sequence[ToolSchema] = ()) -> None:
        """Checks that each message is in what the template renders.

        Raises:
            DataError: one is not: its number and role; or the template fails.
        """
        shape = tuple((str(message["role"]), _has_text(message)) for message in messages)
        seen = (bool(schemas), shape)
        if seen in self._shown:
            return
        marked = [_marked(message, i) for i, message in enumerate(messages)]
        text = self._render(marked, schemas)
        for i, (role, has_text) in enumerate(shape):
            if has_text and MARK.format(i) not in text:
                raise DataError(
                    f"message {i} of role `{role}` is not in what the chat template renders, so "
                    "the model would not see it; give it a role that the template knows, or set "
                    "rollout.chat_template to one that shows it"
                )
        if len(self._shown) < MOST_SHAPES:
            self._shown.add(seen)


def _has_text(message: Message) -> bool:
    """True for text that must be shown; templates may leave out what stands beside calls."""
    content = message["content"]
    return bool(content) and not message.get("tool_calls")


def _marked(message: Message, index: int) -> Message:
    return message | {"content": MARK.format(index)} if _has_text(message) else message
