"""Folders that other machines read: complete, or absent.

.policy-v000012.tmp/   written, fsynced   --rename-->   policy-v000012/
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from asyncgrpo.errors import SyncError


def write_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Make the folder `final` from what `write` puts into a temporary one beside it.

    A folder that stands there already is replaced.

    Raises:
        SyncError: the files cannot be written; nothing is left half done under `final`.
    """
    unfinished = final.with_name(f".{final.name}.tmp")
    replaced = final.with_name(f".{final.name}.old")
    try:
        remove_folder(unfinished)
        remove_folder(replaced)
        unfinished.mkdir(parents=True)
        write(unfinished)
        for path in unfinished.iterdir():
            _fsync(path)
        _fsync(unfinished)
        if final.exists():
            final.rename(replaced)
        unfinished.rename(final)
        _fsync(final.parent)
        remove_folder(replaced)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise SyncError(
            f"{final}: the weights could not be written ({error}); free some space or set sync.path"
        ) from error


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
