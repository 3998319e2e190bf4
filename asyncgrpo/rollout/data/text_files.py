"""Files of text as rows, exactly as they are written: no type is guessed.

    bytes --gzip?--> lines of UTF-8, the byte order mark skipped --format--> rows

| file                  | a row is                        | its values                         |
|---|---|---|
| `.jsonl`, `.ndjson`   | an object a line                | JSON's own; integers of any size   |
| `.json`               | an entry of the list            | the same                           |
| `.csv`, `.tsv`        | a record below the header       | all texts                          |

Each may end in `.gz`, and be written in capitals. Lines are counted from 1, rows from 0.
"""

import copy
import csv
import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from asyncgrpo.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv"}
LARGEST_CELL = 2**31 - 1  # characters; the csv module stops at 131,072 unless told

FileRow = dict[str, Any]


def text_format(file: Path) -> str | None:
    """The format that a file's name tells; None for no format of text. `.gz` is no part of it."""
    name = file.name.lower().removesuffix(".gz")
    return FORMATS.get(Path(name).suffix)


@dataclass(frozen=True)
class TextTable:
    """Rows in memory; a column that a row lacks is null in it.

    Each look at a row gives a copy, so what a user's code changes in it changes no other look.
    """

    rows: Sequence[FileRow]
    column_names: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row_index: int) -> FileRow:
        return dict.fromkeys(self.column_names) | copy.deepcopy(self.rows[row_index])


@dataclass(frozen=True)
class TextStream:
    """The rows of files, read anew in each pass; the first row names the columns."""

    files: Sequence[Path]

    def __iter__(self) -> Iterator[FileRow]:
        """Yields the rows. Raises DataError: a file cannot be read, or a row has a new column."""
        columns: FileRow | None = None
        for file in self.files:
            for row_index, row in enumerate(read_rows(file)):
                if columns is None:
                    columns = dict.fromkeys(row)
                new = next((name for name in row if name not in columns), None)
                if new is not None:
                    raise DataError(
                        f"data.path `{file}`, row {row_index}: the column `{new}` is not in the "
                        "first row, which names the columns of a stream; write it there too (null "
                        "where it has no value), or leave data.streaming out"
                    )
                yield columns | row


def read_table(files: Sequence[Path]) -> TextTable:
    """The rows of the files, in this order, with the columns of them all.

    Raises:
        DataError: a file cannot be read.
    """
    rows = [row for file in files for row in read_rows(file)]
    names = dict.fromkeys(name for row in rows for name in row)
    return TextTable(rows, list(names or _header(files)))


def read_rows(file: Path) -> Iterator[FileRow]:
    """The rows of a file, one after the other.

    Raises:
        DataError: it cannot be read; the line or row is named.
    """
    form = text_format(file)
    where = f"data.path `{file}`"
    try:
        if form == "json":
            yield from _json_rows(file, where)
        elif form == "jsonl":
            yield from _line_rows(_lines(file, where), where)
        else:
            yield from itertools.islice(_records(file, where), 1, None)
    except (OSError, EOFError, zlib.error) as error:  # gzip's own among them
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{where} cannot be read: {reason}") from error


def _lines(file: Path, where: str) -> Iterator[bytes]:
    """The lines as they are, but for the byte order mark; each is UTF-8."""
    opener = gzip.open if file.name.lower().endswith(".gz") else open
    with opener(file, "rb") as lines:
        for number, line in enumerate(cast("Iterable[bytes]", lines), start=1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if not text.isascii():
                _check_encoding(text, f"{where}, line {number}")
            yield text


def _check_encoding(text: bytes, where: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        got = " ".join(f"{byte:02x}" for byte in text[error.start : error.start + 4])
        raise DataError(
            f"{where}: the bytes {got} are not UTF-8; write the file as UTF-8 (from Latin-1: "
            "iconv -f latin1 -t utf-8)"
        ) from error


def _line_rows(lines: Iterable[bytes], where: str) -> Iterator[FileRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            at = f"{where}, line {number}"
            yield _columns(_decoded(line, at), at)


def _json_rows(file: Path, where: str) -> Iterator[FileRow]:
    """A list of rows, or one row. Many a file of this name has a row a line: read too."""
    lines = [*_lines(file, where)]
    content = b"".join(lines)
    if not content.strip():
        return
    try:
        value = _decoded(content, where)
    except DataError:
        filled = sum(1 for line in lines if line.strip())
        if filled == 1 or not content.lstrip().startswith(b"{"):
            raise
        yield from _line_rows(lines, where)
        return
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    for row_index, entry in enumerate(entries):
        yield _columns(entry, f"{where}, row {row_index}")


def _decoded(text: bytes, where: str) -> object:
    try:
        return msgspec.json.decode(text)
    except ValueError:  # json also reads NaN, and its error names the column
        try:
            value: object = json.loads(text)
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: half of a surrogate pair (\\ud800 to \\udfff), which is no character"
            ) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON: {error}") from None
        return value


def _columns(value: object, where: str) -> FileRow:
    if not isinstance(value, dict):
        raise DataError(f"{where}: got {type(value).__name__}, expected an object of columns")
    return cast("FileRow", value)


def _records(file: Path, where: str) -> Iterator[FileRow]:
    """The header as a row of its own, then each record. All have as many cells."""
    texts = (line.decode() for line in _lines(file, where))
    csv.field_size_limit(LARGEST_CELL)
    dialect = "excel" if text_format(file) == "csv" else "excel-tab"
    reader = csv.reader(texts, dialect, strict=True)
    names: list[str] = []
    row_index = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{where}, line {line}: {error}") from error
        if cells is None:
            return
        if not cells:  # a blank line
            continue
        if not names:
            names = _column_names(cells, where)
        elif len(cells) != len(names):
            raise DataError(
                f"{where}, line {line} (row {row_index}): {len(cells)} fields, and the header "
                f"names {len(names)} ({', '.join(names)}); put a field with a separator or a line "
                "break in quotes"
            )
        else:
            row_index += 1
        yield dict(zip(names, cells, strict=True))


def _column_names(header: list[str], where: str) -> list[str]:
    """The header's names. A column without one, as an index often is, gets its place."""
    names = [name or f"Unnamed: {i}" for i, name in enumerate(header)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}, line 1: two columns are named `{twice}`; rename one")
    return names


def _header(files: Sequence[Path]) -> Iterator[str]:
    """The columns that a file without rows names."""
    for file in files:
        if text_format(file) in {"csv", "tsv"}:
            for header in itertools.islice(_records(file, f"data.path `{file}`"), 1):
                yield from header
