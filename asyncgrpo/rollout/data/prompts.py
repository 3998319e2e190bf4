"""Prompts of a dataset, in an order that every process knows.

    dataset --row_index--> row --prompt_column | prompt_template--> messages + other columns
    (seed, epoch) --permutation--> position -> row_index

Position i of epoch e is the same prompt in every process and after every resume: the order
depends on nothing else. A stream cannot be repositioned; see `stream.py`. With environments a row
may have no conversation, and there may be no dataset: `reset` returns the prompt.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import numpy as np
from jaxtyping import Int64

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.conversation import RowError
from asyncgrpo.rollout.data.dataset_files import open_dataset
from asyncgrpo.rollout.data.row_mapping import Prompt, RowMapping
from asyncgrpo.rollout.data.stream import PromptStream

ROWS_CHECKED_AT_START = 100_000  # more are checked as they come up
PROMPTS_RENDERED_AT_START = 64
ROWS_WITHOUT_DATASET = 1 << 20  # an "epoch" of prompts that environments make
SEED_MASK = (1 << 64) - 1  # numpy takes no negative seed


class Table(Protocol):
    """The part of a `datasets.Dataset` that is used here."""

    @property
    def column_names(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row_index: int) -> dict[str, Any]: ...


class PromptSource(Protocol):
    """The source of a worker's prompts: `Prompts` or a `PromptStream`."""

    @property
    def starts_over(self) -> bool:
        """True if a resumed run gets prompts again that it had."""
        ...

    @property
    def column_names(self) -> list[str]:
        """The columns that reach rewards as keywords."""
        ...

    def __len__(self) -> int:
        """Prompts of an epoch."""
        ...

    def checked(self) -> Iterator[Prompt]:
        """The prompts that can be looked at before the start."""
        ...

    async def take(self, *, seed: int, epoch: int, position: int) -> Prompt:
        """The prompt at a position of an epoch. Raises RowError, DataError."""
        ...


class Prompts:
    """The dataset as prompts; every row is checked."""

    starts_over = False  # on resume

    def __init__(
        self, table: Table, source: DataSource, *, environment_prompts: bool = False
    ) -> None:
        """With `environment_prompts` rows need no conversation."""
        self._table = table
        self._source = source
        self._size = min(len(table), source.max_prompts or len(table))
        if self._size == 0:
            raise DataError(f"data.path `{source.path}` has no rows; expected at least one prompt")
        self._order_of: tuple[int, int] | None = None
        self._order = np.empty(0, np.int64)
        self._mapping = RowMapping(
            table.column_names, source, environment_prompts=environment_prompts
        )
        for _ in self.checked():
            pass

    def __len__(self) -> int:
        return self._size

    @property
    def column_names(self) -> list[str]:
        """The columns that reach rewards as keywords."""
        return self._mapping.reward_columns

    def __getitem__(self, row_index: int) -> Prompt:
        """The prompt of a row.

        Raises:
            RowError: the row has no usable conversation.
        """
        return self._mapping.prompt(self._row(row_index), row_index)

    def checked(self) -> Iterator[Prompt]:
        """The prompts that are looked at before the start. Raises RowError."""
        most = ROWS_CHECKED_AT_START if self._table.column_names else 0
        return map(self.__getitem__, range(min(self._size, most)))

    async def take(self, *, seed: int, epoch: int, position: int) -> Prompt:
        """The prompt at a position of an epoch. Raises RowError."""
        return self.at(seed=seed, epoch=epoch, position=position)

    def at(self, *, seed: int, epoch: int, position: int) -> Prompt:
        """The prompt at a position of the epoch's permutation."""
        if self._order_of != (seed, epoch):
            self._order_of, self._order = (seed, epoch), self.order(seed=seed, epoch=epoch)
        row_index = int(self._order[position])
        return self._mapping.prompt(self._row(row_index), row_index, epoch)

    def _row(self, row_index: int) -> dict[str, Any]:
        try:
            return self._table[row_index]
        except Exception as error:  # text that is not UTF-8, an image that is damaged
            reason = f"{type(error).__name__}: {error}"
            raise RowError(f"row {row_index} cannot be read: {reason}") from error

    def order(self, *, seed: int, epoch: int) -> Int64[np.ndarray, "num_prompts"]:
        """Row index at each position of the epoch."""
        if not self._source.shuffle:
            return np.arange(self._size)
        return permutation(self._size, seed=seed, epoch=epoch)


def permutation(num_prompts: int, *, seed: int, epoch: int) -> Int64[np.ndarray, "num_prompts"]:
    """The order of an epoch, from (seed, epoch) alone."""
    return np.random.default_rng([seed & SEED_MASK, epoch]).permutation(num_prompts)


def load_prompts(
    source: DataSource, *, seed: int = 0, environment_prompts: bool = False
) -> PromptSource:
    """Reads the dataset and checks it; with `environment_prompts` there may be none.

    Raises:
        DataError: it cannot be read, is empty, or its rows are not prompts.
    """
    if source.path is not None:
        rows = open_dataset(source, source.path)
        if source.streaming:
            return PromptStream(rows, source, seed=seed, environment_prompts=environment_prompts)
        return Prompts(cast("Table", rows), source, environment_prompts=environment_prompts)
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
