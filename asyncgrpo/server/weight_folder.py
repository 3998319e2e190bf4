"""A folder of weights with checksums: safetensors files, and a manifest written last.

    policy-v000012/
      model.safetensors           or model-00001-of-00003.safetensors, ...
      manifest.json               version, and the size and checksum of each file

The trainer writes it (`sync/folder.py`), the server reads it (`server/folder_engine.py`). A file
that is torn, missing or from another version is refused by name before a weight is touched.
Pure files: neither torch nor vllm is imported here.
"""

from pathlib import Path

import msgspec
import xxhash

from asyncgrpo.errors import SyncError

MANIFEST = "manifest.json"
READ_BYTES = 1 << 22  # files are hashed in pieces of 4 MiB, not held whole


class WeightFile(msgspec.Struct, frozen=True):
    """One safetensors file as it was written."""

    name: str
    size: int
    xxh3_128: str


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a complete folder."""

    version: int
    files: tuple[WeightFile, ...]


def checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes, as hex."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def describe(folder: Path, *, version: int) -> Manifest:
    """The manifest of the safetensors files now in `folder`."""
    paths = sorted(folder.glob("*.safetensors"))
    return Manifest(
        version, tuple(WeightFile(p.name, p.stat().st_size, checksum(p)) for p in paths)
    )


def write_manifest(folder: Path, *, version: int) -> Path:
    """Write the manifest of the files now in `folder`; the last file written there."""
    path = folder / MANIFEST
    path.write_bytes(msgspec.json.format(msgspec.json.encode(describe(folder, version=version))))
    return path


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`.

    Raises:
        SyncError: there is none, or it is not one.
    """
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise SyncError(
            f"{_called(path)}: cannot be read ({error.strerror}); trainer and server must see the "
            "folder at the same path: check sync.path and the mount"
        ) from error
    except msgspec.DecodeError as error:
        raise SyncError(f"{_called(path)}: not a manifest ({error}): the file is torn") from error


def verified_files(folder: Path, *, version: int | None = None) -> tuple[Path, ...]:
    """The weight files of `folder`, each checked against the manifest.

    Args:
        folder: as published.
        version: the version expected; None accepts any.

    Raises:
        SyncError: naming the file that is missing, torn or changed, or the version found.
    """
    manifest = read_manifest(folder)
    manifest_called = _called(folder / MANIFEST)
    if version is not None and manifest.version != version:
        raise SyncError(
            f"{manifest_called}: holds version {manifest.version}, expected {version}: "
            "a stale mount or another run's folder; check sync.path"
        )
    if not manifest.files:
        raise SyncError(f"{manifest_called}: lists no weight files")
    for file in manifest.files:
        _verify(folder / file.name, file)
    return tuple(folder / file.name for file in manifest.files)


def _verify(path: Path, expected: WeightFile) -> None:
    if Path(expected.name).name != expected.name:
        raise SyncError(f"{MANIFEST}: names a file outside its folder: {expected.name!r}")
    if not path.is_file():
        raise SyncError(f"{_called(path)}: missing, though the manifest lists it")
    size = path.stat().st_size
    if size != expected.size:
        raise SyncError(
            f"{_called(path)}: {size} bytes, expected {expected.size}: the file is torn"
        )
    found = checksum(path)
    if found != expected.xxh3_128:
        raise SyncError(
            f"{_called(path)}: checksum {found}, expected {expected.xxh3_128}: not the file that "
            "was published"
        )


def _called(path: Path) -> str:
    """A name that survives the way back: vLLM's answers replace whole paths by `<path>`."""
    return f"{path.name} of {path.parent.name}"
