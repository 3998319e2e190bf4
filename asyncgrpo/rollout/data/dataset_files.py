"""Datasets as `data` names them: read whole, or as a stream.

| data.path                              | read as                                 | by           |
|---|---|---|
| a file of json, jsonl, csv, tsv        | its rows, every text as it is written   | `text_files` |
| a file of parquet                      | its rows, with the types it declares    | `datasets`   |
| a folder that `save_to_disk` wrote     | its rows                                | `datasets`   |
| another folder                         | its files of the split, as above        |              |
| anything else                          | a dataset of the hub                    | `datasets`   |

`datasets` guesses the types of text: "2024-05-01" becomes a date and "007" a 7. What it is asked
for of a local file is parquet alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.splits import Split, parse_split
from asyncgrpo.rollout.data.text_files import (
    FORMATS,
    TextStream,
    TextTable,
    read_table,
    text_format,
)

DEFAULT_SPLIT: str = DataSource.model_fields["split"].default
PARQUET = ".parquet"
KNOWN = (*FORMATS, PARQUET)


def open_dataset(source: DataSource, path: str) -> Any:
    """The rows: a table, or with `data.streaming` what each iteration of is a pass.

    Raises:
        DataError: it cannot be read.
    """
    local = Path(path)
    problem = find_problem(source, path)
    if problem is not None:
        raise DataError(problem)
    try:
        if local.is_file():
            return _open_files([local], source, parse_split(source.split))
        if local.is_dir():
            return _open_folder(local, source)
        return _datasets().load_dataset(
            path, source.name, split=source.split, streaming=source.streaming
        )
    except DataError:
        raise
    except StopIteration as error:  # from `datasets`, for an empty file
        raise DataError(f"data.path `{path}` has no rows; expected at least one prompt") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error.__cause__ or error}"
        raise DataError(
            f"data.path `{path}` (split `{source.split}`) cannot be read: {reason}"
        ) from error


def find_problem(source: DataSource, path: str) -> str | None:
    """The problem with a local path that shows before anything of it is read."""
    local = Path(path)
    if local.is_file():
        return _file_problem(local, source)
    if local.is_dir():
        if _is_saved(local):
            if source.split == DEFAULT_SPLIT:
                return None
            return (
                f"data.split: got {source.split!r}, but `{local}` holds one dataset without "
                "splits, as `save_to_disk` wrote it; leave data.split out, or set data.max_prompts"
            )
        if not _data_files(local):
            return f"data.path `{local}` has no file of json, jsonl, csv, tsv or parquet"
    elif local.is_absolute() or _is_known(local):
        return f"data.path: no file or folder `{path}`"
    return None


def _file_problem(file: Path, source: DataSource) -> str | None:
    if not _is_known(file):
        return (
            f"data.path `{file}`: got a `{file.suffix}` file, expected {', '.join(KNOWN)}, "
            "or one of the text formats with .gz"
        )
    try:
        split = parse_split(source.split)
    except DataError as error:
        return str(error)
    if split.name != DEFAULT_SPLIT:
        return (
            f"data.split: got {source.split!r}, and the one file `{file}` has the split "
            f"`{DEFAULT_SPLIT}` alone; leave data.split out, or write a slice such as "
            f"{DEFAULT_SPLIT}[:1000]"
        )
    return None


def _is_known(file: Path) -> bool:
    return text_format(file) is not None or file.suffix.lower() == PARQUET


def _is_saved(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file()


def _data_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and _is_known(file))


def _open_files(files: Sequence[Path], source: DataSource, split: Split) -> Any:
    """Files of one split, all of text or all of parquet."""
    if all(text_format(file) is not None for file in files):
        if source.streaming:
            return TextStream(files)
        return sliced(read_table(files), split)
    table = _datasets().load_dataset(
        "parquet",
        data_files=[str(file) for file in files],
        split="train",
        streaming=source.streaming,
    )
    return table if source.streaming or split.is_whole else table.select(split.rows(len(table)))


def sliced(table: TextTable, split: Split) -> TextTable:
    """The rows of the table that the split asks for."""
    if split.is_whole:
        return table
    return TextTable([table.rows[i] for i in split.rows(len(table))], table.column_names)


def _open_folder(folder: Path, source: DataSource) -> Any:
    """A folder saved by `datasets`, or one of data files, whose splits `datasets` tells apart."""
    if _is_saved(folder):
        return _datasets().load_from_disk(str(folder))  # mapped into memory: it streams as it is
    split = parse_split(source.split)
    builder = _datasets().load_dataset_builder(str(folder), source.name)
    by_split = cast("dict[str, list[str]]", builder.config.data_files or {})
    files = [Path(name) for name in by_split.get(split.name, ())]
    if not files:
        raise DataError(
            f"data.split: got {source.split!r}, and `{folder}` has "
            f"{', '.join(f'`{name}`' for name in by_split) or 'none'}"
        )
    if not all(_is_known(file) for file in files):
        return _datasets().load_dataset(
            str(folder), source.name, split=source.split, streaming=source.streaming
        )
    return _open_files(files, source, split)


def _datasets() -> Any:
    import datasets  # slow to import, and only the worker needs it

    datasets.disable_progress_bars()
    return datasets
