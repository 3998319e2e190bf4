"""Prompts: a dataset whose rows are conversations, in an order that every process knows.

    dataset --row_index--> row --prompt_column | prompt_template--> messages + other columns
    (seed, epoch) --permutation--> position -> row_index

Position i of epoch e is the same prompt in every process and after every resume: the order
depends on nothing else. With environments a row may have no conversation, and there may be no
dataset at all: what `reset` returns is the prompt.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from jaxtyping import Int64

from asyncgrpo.config.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.group import Message, Messages

DEFAULT_SPLIT: str = DataSource.model_fields["split"].default
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
RESERVED_COLUMNS = ("prompts", "completions", "completion_ids")  # keywords of every reward
ROWS_CHECKED_AT_START = 100_000  # more are checked as they come up
SHOWN_CHARACTERS = 80
ROWS_WITHOUT_DATASET = 1 << 20  # an "epoch" of prompts that environments make
SEED_MASK = (1 << 64) - 1  # numpy takes no negative seed


class Table(Protocol):
    """What is used of a `datasets.Dataset`."""

    @property
    def column_names(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row_index: int) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset entry."""

    row_index: int
    messages: Messages  # none where the environment makes the prompt
    row: dict[str, Any]  # every column, as the dataset gives it
    columns: dict[str, Any]  # those that reach rewards: all but the prompt column


class Prompts:
    """The dataset as prompts; every row is checked."""

    def __init__(
        self, table: Table, source: DataSource, *, environment_prompts: bool = False
    ) -> None:
        """`environment_prompts` says that rows need no conversation."""
        self._table = table
        self._source = source
        self._has_messages = (
            not environment_prompts
            or source.prompt_template is not None
            or source.prompt_column in table.column_names
        )
        self._size = min(len(table), source.max_prompts or len(table))
        if self._size == 0:
            raise DataError(f"data.path `{source.path}` has no rows; expected at least one prompt")
        self._order_of: tuple[int, int] | None = None
        self._order = np.empty(0, np.int64)
        self._check_columns()
        checked = ROWS_CHECKED_AT_START if table.column_names else 0
        for row_index in range(min(self._size, checked)):
            self[row_index]

    def __len__(self) -> int:
        return self._size

    @property
    def column_names(self) -> list[str]:
        """The columns that reach rewards as keywords."""
        return [name for name in self._table.column_names if name != self._source.prompt_column]

    def __getitem__(self, row_index: int) -> Prompt:
        """The prompt of a row.

        Raises:
            DataError: the row has no usable conversation.
        """
        row = self._table[row_index]
        messages = self._messages(row, row_index)
        columns = {name: row[name] for name in self.column_names}
        return Prompt(row_index, messages, row, columns)

    def at(self, *, seed: int, epoch: int, position: int) -> Prompt:
        """The prompt at a position of the epoch's permutation."""
        if self._order_of != (seed, epoch):
            self._order_of, self._order = (seed, epoch), self.order(seed=seed, epoch=epoch)
        return self[int(self._order[position])]

    def order(self, *, seed: int, epoch: int) -> Int64[np.ndarray, "num_prompts"]:
        """Row index at each position of the epoch."""
        if not self._source.shuffle:
            return np.arange(self._size)
        return permutation(self._size, seed=seed, epoch=epoch)

    def _messages(self, row: Mapping[str, Any], row_index: int) -> Messages:
        source = self._source
        if not self._has_messages:
            messages: Messages = []
        elif source.prompt_template is not None:
            text = source.prompt_template.format(**row)
            messages = [{"role": "user", "content": text}]
        else:
            messages = _conversation(row[source.prompt_column], row_index, source.prompt_column)
        has_system = bool(messages) and messages[0]["role"] == "system"
        if source.system_prompt is not None and not has_system:
            messages = [{"role": "system", "content": source.system_prompt}, *messages]
        return messages

    def _check_columns(self) -> None:
        source, names = self._source, self._table.column_names
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


def permutation(num_prompts: int, *, seed: int, epoch: int) -> Int64[np.ndarray, "num_prompts"]:
    """The order of an epoch, from (seed, epoch) alone."""
    return np.random.default_rng([seed & SEED_MASK, epoch]).permutation(num_prompts)


def template_columns(template: str) -> list[str]:
    """The columns a prompt template names.

    Raises:
        DataError: a brace that is not `{column}`; a literal one is written twice.
    """
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise DataError(_bad_template(template, str(error))) from error
    for name in fields:
        if not name.isidentifier():
            raise DataError(_bad_template(template, f"`{{{name}}}` names no column"))
    return fields


def load_prompts(source: DataSource, *, environment_prompts: bool = False) -> Prompts:
    """Read the dataset and check it; `environment_prompts` says that none is needed.

    Raises:
        DataError: it cannot be read, is empty, or its rows are not prompts.
    """
    if source.path is not None:
        table = _load_table(source, source.path)
        return Prompts(table, source, environment_prompts=environment_prompts)
    if not environment_prompts:
        raise DataError("data.path is not set; expected a hub id or a local file or folder")
    return Prompts(_NoDataset(), source, environment_prompts=True)


class _NoDataset:
    """Rows without a column."""

    column_names: Sequence[str] = ()

    def __len__(self) -> int:
        return ROWS_WITHOUT_DATASET

    def __getitem__(self, row_index: int) -> dict[str, Any]:
        return {}


def _load_table(source: DataSource, path: str) -> Table:
    import datasets  # slow to import, and only the worker needs it

    datasets.disable_progress_bars()
    local = Path(path)
    try:
        if local.is_file():
            file_format = _format_of(local)
            table = datasets.load_dataset(file_format, data_files=path, split=source.split)
        elif local.is_dir():
            table = _load_folder(local, source)
        elif local.suffix in FORMATS or local.is_absolute():
            raise DataError(f"data.path: no file or folder `{path}`")
        else:
            table = datasets.load_dataset(path, source.name, split=source.split)
    except DataError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error.__cause__ or error}"
        raise DataError(
            f"data.path `{path}` (split `{source.split}`) cannot be read: {reason}"
        ) from error
    return cast("Table", table)


def _load_folder(folder: Path, source: DataSource) -> Table:
    """A folder saved by `datasets`, or one of data files."""
    import datasets

    if (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file():
        if source.split != DEFAULT_SPLIT:
            raise DataError(
                f"data.split: got {source.split!r}, but `{folder}` holds one dataset without "
                "splits, as `save_to_disk` wrote it; leave data.split out, or set data.max_prompts"
            )
        return cast("Table", datasets.load_from_disk(str(folder)))
    formats = {FORMATS[f.suffix] for f in folder.rglob("*") if f.suffix in FORMATS}
    if not formats:
        raise DataError(f"data.path `{folder}` has no file of json, jsonl, csv or parquet")
    table = datasets.load_dataset(str(folder), source.name, split=source.split)
    return cast("Table", table)


def _format_of(file: Path) -> str:
    if file.suffix not in FORMATS:
        raise DataError(
            f"data.path `{file}`: got a `{file.suffix}` file, expected {', '.join(FORMATS)}"
        )
    return FORMATS[file.suffix]


def _conversation(value: object, row_index: int, column: str) -> Messages:
    """The messages of a prompt column, without the keys that other rows alone have."""
    where = f"row {row_index}: column `{column}`"
    if not isinstance(value, list):
        raise DataError(
            f"{where} holds {_show(value)}; expected a list of messages with `role` and `content`. "
            f'For a column of plain text set data.prompt_template, such as "{{{column}}}"'
        )
    if not value:
        raise DataError(f"{where} is an empty list; expected at least one message")
    return [_message(entry, i, where) for i, entry in enumerate(cast("list[object]", value))]


def _message(entry: object, index: int, where: str) -> Message:
    if isinstance(entry, dict):
        message = {k: v for k, v in cast("Message", entry).items() if v is not None}
        if isinstance(message.get("role"), str) and "content" in message:
            return message
    raise DataError(
        f"{where}: message {index} is {_show(entry)}; expected an object with `role` and `content`"
    )


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _bad_template(template: str, reason: str) -> str:
    return (
        f"data.prompt_template {_show(template)}: {reason}; expected `{{column}}`, and a literal "
        "brace written twice: `{{` or `}}`"
    )
