"""What the model's folder says about it, for `derive`."""

import json
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.derive import Facts
from asyncgrpo.config.tree import Config
from asyncgrpo.errors import ConfigError


def local_facts(config: Config, *, cuda_count: int, recipe_name: str) -> Facts:
    """The facts that are known before any process starts.

    A model on the hub says nothing until it has been fetched: its server tells later.

    Raises:
        ConfigError: the model's folder has no readable config.json.
    """
    model = _model_config(config.model.name_or_path)
    positions = model.get("max_position_embeddings")
    dtype = model.get("dtype", model.get("torch_dtype"))
    return Facts(
        cuda_count=cuda_count,
        recipe_name=recipe_name,
        working_dir=str(Path.cwd()),
        model_max_positions=positions if isinstance(positions, int) else None,
        model_dtype=dtype if isinstance(dtype, str) else None,
    )


def _model_config(name_or_path: str) -> dict[str, Any]:
    """The text model's part of a local config.json; empty for a model on the hub."""
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {}
    file = folder / "config.json"
    try:
        document = cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.name_or_path: {folder} is not a model in Hugging Face format: {error}"
        ) from error
    return document | document.get("text_config", {})
