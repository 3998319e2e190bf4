"""A cell of a dataset as the messages of a prompt.

    list of {role, content} --> messages whose content is text

    content                       becomes
    text                          itself
    text parts                    one text, a line break between two parts
    null beside `tool_calls`      empty text
    a part that is no text        refused by row, role and type: only text is trained

Templates differ in what they make of a list of parts, and some make nothing of it.
"""

from collections.abc import Mapping
from typing import cast

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.group import Message, Messages

SHOWN_CHARACTERS = 80
PARTS_OF_TEXT = frozenset({None, "text", "input_text", "output_text"})
IMAGE_COLUMNS = ("image", "images")  # other trainers show these to the model


class RowError(DataError):
    """A row that is no prompt; other rows may be."""


def conversation(value: object, row_index: int, column: str) -> Messages:
    """The messages of a prompt column, without the keys that other rows alone have.

    Raises:
        RowError: it is no conversation, or has what a prompt cannot show.
    """
    where = f"row {row_index}: column `{column}`"
    if not isinstance(value, list):
        raise RowError(
            f"{where} holds {show(value)}; expected a list of messages with `role` and `content`. "
            f'For a column of plain text set data.prompt_template, such as "{{{column}}}"'
        )
    if not value:
        raise RowError(f"{where} is an empty list; expected at least one message")
    messages = [_message(entry, i, where) for i, entry in enumerate(cast("list[object]", value))]
    if messages[-1].get("tool_calls"):
        raise RowError(
            f"{where}: its last message calls tools, and no message answers; expected the results "
            "as messages of role `tool`, or no calls"
        )
    return messages


def check_no_images(row: Mapping[str, object], row_index: int) -> None:
    """Raise a RowError for a column of images: the model would not see them."""
    for name in IMAGE_COLUMNS:
        value = row.get(name)
        if value and not isinstance(value, (str, int, float)):
            raise RowError(
                f"row {row_index}: column `{name}` holds {show(value)}: images are not trained, "
                "only text; remove the column, or rename it if only rewards or environments use it"
            )


def show(value: object) -> str:
    """A value as a message shows it: its beginning."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _message(entry: object, index: int, where: str) -> Message:
    if isinstance(entry, dict):
        message = {k: v for k, v in cast("Message", entry).items() if v is not None}
        if message.get("tool_calls") and "content" not in message:
            message["content"] = ""  # null beside calls, as the OpenAI API writes it
        content = message.get("content")
        if isinstance(message.get("role"), str) and isinstance(content, (str, list)):
            if isinstance(content, list):
                role = f"{where}: message {index} of role `{message['role']}`"
                message["content"] = _joined(cast("list[object]", content), role)
            return message
    raise RowError(
        f"{where}: message {index} is {show(entry)}; expected an object with `role` and "
        "`content`, which are text"
    )


def _joined(parts: list[object], where: str) -> str:
    if not parts:
        raise RowError(f"{where} has an empty list as its content; expected text")
    return "\n".join(_text_of_part(part, where) for part in parts)


def _text_of_part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        fields = cast("Message", part)
        kind, text = fields.get("type"), fields.get("text")
        if kind in PARTS_OF_TEXT and isinstance(text, str):
            return text
        if kind not in PARTS_OF_TEXT:
            raise RowError(f"{where} has a part of type `{kind}`; only text is trained")
    raise RowError(
        f"{where} has the part {show(part)}; expected text, or an object with `type`: `text` and "
        "`text`"
    )
