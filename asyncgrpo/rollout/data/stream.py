"""Prompts read while training, from a dataset too large to hold or without a length.

    stream --rows, in order--> shuffle buffer --> queue of BUFFER_ROWS --take--> prompt
             a thread reads; it waits while the queue is full      pass after pass, without end

A stream cannot be repositioned: each call gives the next prompt, and a resumed run begins with the
first again. Its epochs are passes. Without `data.max_prompts` the number of rows in a pass is
unknown: ordinals then count on in one epoch of `UNKNOWN_LENGTH`.
"""

import contextlib
import itertools
import logging
import queue
import random
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.row_mapping import Prompt, RowMapping
from asyncgrpo.rollout.hooks.threads import in_daemon_thread

log = logging.getLogger(__name__)

BUFFER_ROWS = 256  # read ahead
SHUFFLE_ROWS = 1024  # of which the next is drawn
# docs/decisions/0011
UNKNOWN_LENGTH = 1 << 40  # more prompts than any run sees
STOP_S = 5.0  # for the row that is being read when the stream is closed


class RowStream(Protocol):
    """The part of a `datasets.IterableDataset` that is used: each iteration is a pass."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class _Row:
    epoch: int
    row_index: int  # in the stream's own order
    row: dict[str, Any]


class PromptStream:
    """The stream as prompts; a bad row is reported when it is taken."""

    starts_over = True  # on resume

    def __init__(
        self, rows: RowStream, source: DataSource, *, seed: int, environment_prompts: bool = False
    ) -> None:
        """Reads the first row, and checks its columns.

        Raises:
            DataError: the stream cannot be read, has no rows, or lacks a column.
        """
        self._queue: queue.Queue[_Row | DataError] = queue.Queue(BUFFER_ROWS)
        reader = _Reader(rows, source, seed, self._queue)
        # An interpreter that ends while a thread is in a dataset's native code is aborted.
        weakref.finalize(self, reader.stop)
        first = self._queue.get()
        if isinstance(first, DataError):
            raise first
        self._first: _Row | None = first
        self._size = source.max_prompts or UNKNOWN_LENGTH
        self._mapping = RowMapping(list(first.row), source, environment_prompts=environment_prompts)

    def __len__(self) -> int:
        return self._size

    @property
    def column_names(self) -> list[str]:
        """The columns that reach rewards as keywords."""
        return self._mapping.reward_columns

    def checked(self) -> Iterator[Prompt]:
        """The first prompt; no other is known before it is taken."""
        if self._first is not None:
            yield self._prompt(self._first)

    async def take(self, *, seed: int, epoch: int, position: int) -> Prompt:  # noqa: ARG002 - as `Prompts`
        """The next prompt, wherever the run stands.

        Raises:
            RowError: the row is no prompt; the next call gives the one after it.
            DataError: the stream cannot be read.
        """
        if self._first is not None:
            read, self._first = self._first, None
            return self._prompt(read)
        try:
            read = self._queue.get_nowait()
        except queue.Empty:
            read = await in_daemon_thread(self._queue.get)
        if isinstance(read, DataError):
            raise read
        return self._prompt(read)

    def _prompt(self, read: _Row) -> Prompt:
        return self._mapping.prompt(read.row, read.row_index, read.epoch)


class _Reader:
    """Reads pass after pass into the queue, in a thread; after an error, the error.

    takes      rows of the dataset, in order
    gives      rows to the queue, shuffled; or the DataError that ended the reading
    waits for  the dataset; room in the queue
    woken by   `take`, which makes room; `stop`, which empties the queue
    """

    def __init__(
        self, rows: RowStream, source: DataSource, seed: int, to: "queue.Queue[_Row | DataError]"
    ) -> None:
        self._rows = rows
        self._source = source
        self._seed = seed
        self._queue = to
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="prompt-stream")
        self._thread.start()

    def stop(self) -> None:
        """Ends the reading; returns when the row under way was read."""
        self._stopped = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()  # a full queue would hold the thread
        if threading.current_thread() is not self._thread:  # the garbage collector runs anywhere
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            for epoch in itertools.count():
                self._read(epoch)
                if self._stopped:
                    return
        except DataError as error:
            self._queue.put(error)
        except Exception as error:  # noqa: BLE001 - the dataset's own, or the network's
            reason = f"{type(error).__name__}: {error}"
            self._queue.put(DataError(f"data.path `{self._source.path}`: {reason}"))

    def _read(self, epoch: int) -> None:
        most = self._source.max_prompts
        rows = enumerate(itertools.islice(self._rows, most))
        rows = itertools.takewhile(lambda _: not self._stopped, rows)  # a shuffle reads many first
        order = random.Random(f"{self._seed}:{epoch}") if self._source.shuffle else None
        count = 0
        for row_index, row in rows if order is None else shuffled(rows, order):
            self._queue.put(_Row(epoch, row_index, dict(row)))
            count += 1
            if self._stopped:
                break
        if not self._stopped:
            self._check(count)
            log.info("the stream was read to its end: %d prompts; it begins again", count)

    def _check(self, count: int) -> None:
        path, most = self._source.path, self._source.max_prompts
        if count == 0:
            raise DataError(f"data.path `{path}` has no rows; expected at least one prompt")
        if most is not None and count < most:
            raise DataError(
                f"data.max_prompts: got {most}, and the stream `{path}` ended after {count} rows; "
                f"set it to {count} or less, or leave it out and set trainer.max_steps"
            )


def shuffled(
    rows: Iterable[tuple[int, dict[str, Any]]], order: random.Random
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows, each drawn from the next `SHUFFLE_ROWS` that are not drawn yet."""
    buffer: list[tuple[int, dict[str, Any]]] = []
    for row in rows:
        if len(buffer) < SHUFFLE_ROWS:
            buffer.append(row)
            continue
        at = order.randrange(SHUFFLE_ROWS)
        buffer[at], drawn = row, buffer[at]
        yield drawn
    order.shuffle(buffer)
    yield from buffer
