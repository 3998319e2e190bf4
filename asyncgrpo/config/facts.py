"""Facts about the model, from its folder or the hub's cache, for `derive`."""

import json
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.derive import Facts
from asyncgrpo.config.sections.tree import Config
from asyncgrpo.errors import ConfigError

FLOAT32_BYTES, HALF_BYTES = 4, 2
DELTA_NET_MODELS = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")  # types of the text model


def local_facts(config: Config, *, cuda_count: int, recipe_name: str) -> Facts:
    """The facts that are known before any process starts.

    Nothing is fetched: of a model on the hub nothing is known until it is in the cache.

    Raises:
        ConfigError: the model's folder has no readable config.json.
    """
    model = _model_config(config)
    positions = model.get("max_position_embeddings")
    dtype = model.get("dtype", model.get("torch_dtype"))
    return Facts(
        cuda_count=cuda_count,
        recipe_name=recipe_name,
        working_dir=str(Path.cwd()),
        model_max_positions=positions if isinstance(positions, int) else None,
        model_dtype=dtype if isinstance(dtype, str) else None,
    )


def kv_bytes_per_token(config: Config) -> int | None:
    """Bytes of KV cache per token on a server; None where it is not known."""
    model = _model_config(config)
    heads = model.get("num_attention_heads")
    kv_heads, layers = model.get("num_key_value_heads", heads), model.get("num_hidden_layers")
    width = model.get("head_dim")
    if width is None and isinstance(heads, int) and isinstance(model.get("hidden_size"), int):
        width = model["hidden_size"] // heads
    if not all(isinstance(each, int) for each in (kv_heads, layers, width)):
        return None
    keys_and_values = 2
    size = FLOAT32_BYTES if config.server.dtype in ("float32", None) else HALF_BYTES
    return keys_and_values * int(layers or 0) * int(kv_heads or 0) * int(width or 0) * size


def attention_softcap(config: Config) -> float | None:
    """The cap on the model's attention scores; None = no cap, or not known."""
    cap = _model_config(config).get("attn_logit_softcapping")
    return float(cap) if isinstance(cap, int | float) else None


def has_delta_net(config: Config) -> bool:
    """True if the model is known to have Gated DeltaNet layers.

    They hold a state instead of keys and values.
    """
    return _model_config(config).get("model_type") in DELTA_NET_MODELS


def vocabulary_size(config: Config) -> int | None:
    """The number of tokens in the vocabulary; None where it is not known."""
    size = _model_config(config).get("vocab_size")
    return size if isinstance(size, int) else None


def _model_config(config: Config) -> dict[str, Any]:
    """The text model's part of config.json; empty if the model is not here."""
    file = _config_file(config.model.name_or_path, config.model.revision)
    if file is None:
        return {}
    try:
        document = cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.name_or_path: {file.parent} is not a model in Hugging Face format: {error}"
        ) from error
    return document | document.get("text_config", {})


def _config_file(name_or_path: str, revision: str | None) -> Path | None:
    if Path(name_or_path).is_dir():
        return Path(name_or_path) / "config.json"
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name_or_path, "config.json", revision=revision)
    except HFValidationError as error:
        raise ConfigError(
            f"model.name_or_path: {name_or_path} is neither a folder nor a hub id: {error}"
        ) from error
    return Path(cached) if isinstance(cached, str) else None
