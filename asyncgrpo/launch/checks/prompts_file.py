"""A look at the prompts before anything starts, with the check of the worker.

    data.path = x.jsonl --read--> rows --the worker's own check--> Look: the problem, the columns

Small files of json, jsonl, csv and parquet are read; of a slice, only the columns are used.
Hub ids, folders and large files are left to the worker: reading them here would take too long.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.dataset_files import DEFAULT_SPLIT
from asyncgrpo.rollout.data.prompts import Prompts

LARGEST_BYTES = 16 * 2**20  # about a second to read


@dataclass(frozen=True)
class Rows:
    """Rows that were read whole; a column that a row lacks is null in it."""

    rows: Sequence[dict[str, Any]]
    column_names: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row_index: int) -> dict[str, Any]:
        return dict.fromkeys(self.column_names) | self.rows[row_index]


@dataclass(frozen=True)
class Look:
    """The result of a look at the file; empty where it was not read."""

    problem: str | None = None
    reward_columns: tuple[str, ...] | None = None


def look(source: DataSource, *, environment_prompts: bool = False) -> Look:
    """The problem with the prompts, and the columns that rewards would get."""
    file = Path(source.path or "")
    if file.suffix not in READERS or not file.is_file() or file.stat().st_size > LARGEST_BYTES:
        return Look()
    try:
        rows = READERS[file.suffix](file)
        if source.split != DEFAULT_SPLIT:
            names = (name for name in rows.column_names if name != source.prompt_column)
            return Look(reward_columns=tuple(names))
        prompts = Prompts(rows, source, environment_prompts=environment_prompts)
    except DataError as error:
        message = str(error)
        return Look(message if message.startswith("data.") else f"data.path `{file}`: {message}")
    except OSError as error:
        return Look(f"data.path `{file}` cannot be read: {error.strerror or error}")
    return Look(reward_columns=tuple(prompts.column_names))


def _read_lines(file: Path) -> Rows:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if line.strip():
            rows.append(_row(line, f"data.path `{file}`, line {number}"))
    return _table(rows)


def _read_json(file: Path) -> Rows:
    """One list of rows; or a row a line, which the worker reads as well."""
    try:
        value: object = json.loads(file.read_bytes())
    except ValueError:
        return _read_lines(file)
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    return _table([_columns(row, f"data.path `{file}`, row {i}") for i, row in enumerate(entries)])


def _read_csv(file: Path) -> Rows:
    """Every value a text: enough to know the columns, and to fill a template."""
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.DictReader(lines)
        return Rows(list(reader), list(reader.fieldnames or ()))


def _read_parquet(file: Path) -> Rows:
    import pyarrow as pa  # slow to import
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except pa.ArrowInvalid as error:
        raise DataError(f"data.path `{file}` cannot be read: {error}") from error
    return Rows(table.to_pylist(), list(table.column_names))


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _table(rows: list[dict[str, Any]]) -> Rows:
    return Rows(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        value: object = msgspec.json.decode(line)
    except ValueError:  # json also reads NaN, and its error names the column
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not valid JSON: {error}") from None
    return _columns(value, where)


def _columns(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: got {type(value).__name__}, expected an object of columns")
    return cast("dict[str, Any]", value)
