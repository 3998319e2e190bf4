"""The mapping from a row of a dataset to a prompt.

    row --prompt_column | prompt_template--> messages, and the other columns for rewards

The columns are checked once, a row when it is read.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.conversation import RowError, check_no_images, conversation, show
from asyncgrpo.rollout.group import Message, Messages

RESERVED_COLUMNS = ("prompts", "completions", "completion_ids")  # keywords of every reward
_LATEX = re.compile(r"(\\[A-Za-z]+)\{([^{}]*)\}(?!\})")  # a command of LaTeX: \boxed{}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset entry."""

    row_index: int
    messages: Messages  # none where the environment makes the prompt
    row: dict[str, Any]  # every column, as the dataset gives it
    columns: dict[str, Any]  # those that reach rewards: all but the prompt column
    epoch: int = 0  # how often the dataset was gone through before


class RowMapping:
    """Makes the rows of one dataset into prompts."""

    def __init__(
        self, column_names: Sequence[str], source: DataSource, *, environment_prompts: bool
    ) -> None:
        """Checks the columns; with `environment_prompts` rows need no conversation.

        Raises:
            DataError: a column is missing, or has a name that is taken.
        """
        self._column_names = column_names
        self._source = source
        # The columns that reach rewards as keywords.
        self.reward_columns = [name for name in column_names if name != source.prompt_column]
        self._has_messages = (
            not environment_prompts
            or source.prompt_template is not None
            or source.prompt_column in column_names
        )
        self._check_columns()

    def prompt(self, row: dict[str, Any], row_index: int, epoch: int = 0) -> Prompt:
        """The prompt of a row.

        Raises:
            RowError: the row has no usable conversation.
        """
        messages = self._messages(row, row_index)
        columns = {name: row.get(name) for name in self.reward_columns}
        return Prompt(row_index, messages, row, columns, epoch)

    def _messages(self, row: Mapping[str, Any], row_index: int) -> Messages:
        source = self._source
        check_no_images(row, row_index)
        if not self._has_messages:
            messages: Messages = []
        elif source.prompt_template is not None:
            text = _filled(source.prompt_template, row, row_index)
            messages = [{"role": "user", "content": text}]
        else:
            messages = conversation(row.get(source.prompt_column), row_index, source.prompt_column)
        has_system = bool(messages) and messages[0]["role"] == "system"
        if source.system_prompt is not None and not has_system:
            messages = [{"role": "system", "content": source.system_prompt}, *messages]
        return messages

    def _check_columns(self) -> None:
        source, names = self._source, self._column_names
        listed = ", ".join(f"`{name}`" for name in names)
        for name in RESERVED_COLUMNS:
            if name in names:
                raise DataError(
                    f"data.path `{source.path}`: column `{name}` collides with a keyword that "
                    "every reward function is called with; rename it"
                )
        if source.prompt_template is None:
            if self._has_messages and source.prompt_column not in names:
                raise DataError(
                    f"data.path `{source.path}` has no column `{source.prompt_column}`; it has "
                    f"{listed}. Set data.prompt_column, or data.prompt_template to make the prompt "
                    "from other columns"
                )
            return
        for name in template_columns(source.prompt_template):
            if name not in names:
                raise DataError(
                    f"data.prompt_template names the column `{name}`; `{source.path}` has {listed}"
                )


def template_columns(template: str) -> list[str]:
    """The columns a prompt template names.

    Raises:
        DataError: a brace that is not `{column}`; a literal one is written twice.
    """
    return list(_conversions(template))


def _conversions(template: str) -> dict[str, str | None]:
    """The columns a prompt template names, each with its last `!s` or `!r`."""
    try:
        fields = [
            (name, conversion)
            for _, name, _, conversion in string.Formatter().parse(template)
            if name is not None
        ]
    except ValueError as error:
        raise DataError(_bad_template(template, str(error))) from error
    for name, _ in fields:
        if not name.isidentifier():
            raise DataError(_bad_template(template, f"`{{{name}}}` names no column"))
    return dict(fields)


def _filled(template: str, row: Mapping[str, Any], row_index: int) -> str:
    """The template with the row's columns; "None" is no part of a prompt."""
    for name, conversion in _conversions(template).items():
        value = row.get(name)
        where = f"row {row_index}: column `{name}`"
        if value is None:
            raise RowError(f"{where} is empty, and data.prompt_template needs it")
        if isinstance(value, (list, dict)) and conversion is None:
            raise RowError(_structured(where, name, cast("list[object] | Message", value)))
    try:
        text = template.format_map(row)
    except Exception as error:  # whatever a value makes of a format
        raise RowError(
            f"row {row_index}: data.prompt_template {show(template)}: {error}; a plain "
            "`{column}` takes every value"
        ) from error
    if not text.strip():
        raise RowError(f"row {row_index}: data.prompt_template {show(template)} gives no text")
    return text


def _structured(where: str, name: str, value: "list[object] | Message") -> str:
    """The message for a value that a template would write as Python writes it."""
    holds = f"{where} holds {show(value)}"
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        return (
            f"{holds}: a conversation, which data.prompt_template would write out as Python does; "
            f"leave data.prompt_template out and set data.prompt_column: {name}"
        )
    return (
        f"{holds}, which data.prompt_template would write out as Python does; expected text or a "
        f"number (`{{{name}!s}}` takes it as it is)"
    )


def _bad_template(template: str, reason: str) -> str:
    command = _LATEX.search(template)
    example = ""
    if command is not None:
        example = f"; `{command[0]}` is written `{command[1]}{{{{{command[2]}}}}}`"
    return (
        f"data.prompt_template {show(template)}: {reason}; expected `{{column}}`, and a literal "
        f"brace written twice: `{{{{` or `}}}}`{example}"
    )
