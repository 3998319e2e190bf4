"""`config.json` of a run directory: the resolved configuration, read by every process.

    write_resolved(path, config, derived) -> config.json -> load_resolved(path) == config

It holds names of environment variables, never their values.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from asyncgrpo.config.derive import Derived
from asyncgrpo.config.sections.tree import Config
from asyncgrpo.errors import CheckpointError

CONFIG_FILE = "config.json"  # in the run directory


def write_resolved(path: Path, config: Config, derived: Sequence[Derived] = ()) -> None:
    """Write the configuration, and why each derived value is what it is."""
    document = {
        "config": config.model_dump(mode="json"),
        "derived": {d.key: d.reason for d in derived},
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_resolved(path: Path) -> Config:
    """Read a `config.json`, or the one in a run directory. Raises CheckpointError."""
    file = path / CONFIG_FILE if path.is_dir() else path
    document = read_document(file)
    try:
        return Config.model_validate_json(json.dumps(document["config"]))
    except ValidationError as error:
        odd = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise CheckpointError(
            f"{file}: not a configuration of this version ({'; '.join(odd)}): "
            f"resume with the version of asyncgrpo that wrote it"
        ) from error


def read_document(file: Path) -> dict[str, Any]:
    """The document itself: `config`, and `derived` as key -> reason. Raises CheckpointError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}: not found; expected the config.json that `asyncgrpo train` writes"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    parts = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if not all(isinstance(parts.get(part), dict) for part in ("config", "derived")):
        raise CheckpointError(f"{file}: got no `config` and `derived`; not a config.json of a run")
    return parts
