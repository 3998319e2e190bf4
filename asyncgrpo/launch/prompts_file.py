"""A look at the prompts before anything starts: what the worker would refuse is told at once.

    data.path = x.jsonl --read--> rows --the worker's own check--> the problem, if there is one

Hub ids, folders, other formats, splits and large files are left to the worker: reading them takes
longer than it saves.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.prompts import DEFAULT_SPLIT, Prompts

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


def problem(source: DataSource, *, environment_prompts: bool = False) -> str | None:
    """What is wrong with the prompts, as far as a look at the file tells."""
    file = Path(source.path or "")
    if file.suffix != ".jsonl" or source.split != DEFAULT_SPLIT or not file.is_file():
        return None
    if file.stat().st_size > LARGEST_BYTES:
        return None
    try:
        Prompts(_read(file), source, environment_prompts=environment_prompts)
    except DataError as error:
        said = str(error)
        return said if said.startswith("data.") else f"data.path `{file}`: {said}"
    except OSError as error:
        return f"data.path `{file}` cannot be read: {error.strerror}"
    return None


def _read(file: Path) -> Rows:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if line.strip():
            rows.append(_row(line, f"data.path `{file}`, line {number}"))
    return Rows(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        value: object = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: got {type(value).__name__}, expected an object of columns")
    return cast("dict[str, Any]", value)
