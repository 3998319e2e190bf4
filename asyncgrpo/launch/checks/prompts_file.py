"""A look at the prompts before anything starts, by the worker's own reader and check.

    data.path = x.jsonl --the worker's reader--> rows --its check--> Look: the problem, the columns

Small files of json, jsonl, csv, tsv and parquet are read. Of hub ids, folders and large files only
what shows without reading them is told: reading them here would take too long.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.dataset_files import find_problem, sliced
from asyncgrpo.rollout.data.prompts import PROMPTS_RENDERED_AT_START, Prompts
from asyncgrpo.rollout.data.row_mapping import Prompt, template_columns
from asyncgrpo.rollout.data.splits import parse_split
from asyncgrpo.rollout.data.text_files import TextStream, TextTable, read_table, text_format

LARGEST_BYTES = 16 * 2**20  # about a second to read


@dataclass(frozen=True)
class Look:
    """The result of a look at the file; empty where it was not read."""

    problem: str | None = None
    reward_columns: tuple[str, ...] | None = None
    first: tuple[Prompt, ...] = ()  # to be rendered


def look(source: DataSource, *, environment_prompts: bool = False) -> Look:
    """The problem with the prompts, and the columns that rewards would get."""
    try:
        if source.prompt_template is not None:
            template_columns(source.prompt_template)
        if source.path is None:
            return Look()
        if (problem := find_problem(source, source.path)) is not None:
            return Look(problem)
        file = Path(source.path)
        if not file.is_file() or file.stat().st_size > LARGEST_BYTES:
            return Look()
        prompts = Prompts(_read(file, source), source, environment_prompts=environment_prompts)
    except DataError as error:
        message = str(error)
        named = message if message.startswith("data.") else f"data.path `{source.path}`: {message}"
        return Look(named)
    except OSError as error:
        return Look(f"data.path `{source.path}` cannot be read: {error.strerror or error}")
    first = tuple(itertools.islice(prompts.checked(), PROMPTS_RENDERED_AT_START))
    return Look(reward_columns=tuple(prompts.column_names), first=first)


def _read(file: Path, source: DataSource) -> TextTable:
    """The rows that the worker would get."""
    if text_format(file) is None:
        table = _read_parquet(file)
    elif source.streaming:
        rows = [*itertools.islice(TextStream([file]), source.max_prompts)]
        return TextTable(rows, list(rows[0]) if rows else [])
    else:
        table = read_table([file])
    return sliced(table, parse_split(source.split))


def _read_parquet(file: Path) -> TextTable:
    import pyarrow as pa  # slow to import
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except pa.ArrowInvalid as error:
        raise DataError(f"data.path `{file}` cannot be read: {error}") from error
    return TextTable(table.to_pylist(), list(table.column_names))
