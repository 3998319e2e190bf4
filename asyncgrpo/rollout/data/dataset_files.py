"""Datasets as `data` names them: read whole, or as a stream.

| data.path                             | read as                                |
|---|---|
| a file of json, jsonl, csv, parquet   | its rows                               |
| a folder that `save_to_disk` wrote    | its rows                               |
| another folder                        | its data files, by split               |
| anything else                         | a dataset of the hub                   |
"""

from pathlib import Path
from typing import Any

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError

DEFAULT_SPLIT: str = DataSource.model_fields["split"].default
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def open_dataset(source: DataSource, path: str) -> Any:
    """A `datasets.Dataset`, or a `datasets.IterableDataset` with `data.streaming`.

    Raises:
        DataError: it cannot be read.
    """
    import datasets  # slow to import, and only the worker needs it

    datasets.disable_progress_bars()
    local = Path(path)
    options: dict[str, Any] = {"split": source.split, "streaming": source.streaming}
    try:
        if local.is_file():
            return datasets.load_dataset(_format_of(local), data_files=path, **options)
        if local.is_dir():
            return _open_folder(local, source)
        if local.suffix in FORMATS or local.is_absolute():
            raise DataError(f"data.path: no file or folder `{path}`")
        return datasets.load_dataset(path, source.name, **options)
    except DataError:
        raise
    except StopIteration as error:  # from `datasets`, for an empty file
        raise DataError(f"data.path `{path}` has no rows; expected at least one prompt") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error.__cause__ or error}"
        raise DataError(
            f"data.path `{path}` (split `{source.split}`) cannot be read: {reason}"
        ) from error


def _open_folder(folder: Path, source: DataSource) -> Any:
    """A folder saved by `datasets`, or one of data files."""
    import datasets

    if (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file():
        if source.split != DEFAULT_SPLIT:
            raise DataError(
                f"data.split: got {source.split!r}, but `{folder}` holds one dataset without "
                "splits, as `save_to_disk` wrote it; leave data.split out, or set data.max_prompts"
            )
        return datasets.load_from_disk(str(folder))  # mapped into memory, so it streams as it is
    formats = {FORMATS[f.suffix] for f in folder.rglob("*") if f.suffix in FORMATS}
    if not formats:
        raise DataError(f"data.path `{folder}` has no file of json, jsonl, csv or parquet")
    return datasets.load_dataset(
        str(folder), source.name, split=source.split, streaming=source.streaming
    )


def _format_of(file: Path) -> str:
    if file.suffix not in FORMATS:
        raise DataError(
            f"data.path `{file}`: got a `{file.suffix}` file, expected {', '.join(FORMATS)}"
        )
    return FORMATS[file.suffix]
