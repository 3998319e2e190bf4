"""A check of a local model's folder, without loading the model.

    weights               are there, and as long as their headers say
    tokenizer, template   are there

A hub id is not checked: the server fetches it. `config/facts.py` has read config.json by now.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config import Config

KEY = "model.name_or_path"
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
TOKENIZERS = ("tokenizer*", "*.tiktoken", "tekken.json", "vocab.*", "*.model", "spiece.*")
TEMPLATES = ("chat_template*", "additional_chat_templates")
LENGTH_BYTES = 8  # of the header, at the start of a safetensors file
LONGEST_HEADER = 100_000_000  # the format's own limit


def problems(config: Config) -> Iterator[str]:
    """A line for each thing that is wrong with a model in a local folder."""
    folder = Path(config.model.name_or_path)
    if not folder.is_dir():
        return
    if not _any(folder, WEIGHTS):
        yield f"{KEY}: {folder} has no weights; expected {', '.join(WEIGHTS)}"
    for file in sorted(folder.glob("*.safetensors")):
        if found := safetensors_problem(file):
            yield f"{KEY}: {file} is damaged: {found}; fetch or save the model again"
    if not _any(folder, TOKENIZERS):
        yield f"{KEY}: {folder} has no tokenizer; save one there (tokenizer.json, ...)"
    elif config.rollout.chat_template is None and not _has_template(folder):
        yield (
            f"rollout.chat_template: the tokenizer in {folder} has none; "
            f"give a Jinja template, or a file that holds one"
        )


def safetensors_problem(file: Path) -> str | None:
    """The problem with a file whose length its header contradicts."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            if length > min(size, LONGEST_HEADER):
                return f"{size} bytes, too few for its header"
            header = cast("dict[str, dict[str, Any]]", json.loads(opened.read(length)))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its header is not readable"
    expected = LENGTH_BYTES + length + max(ends, default=0)
    return None if size == expected else f"{size} bytes, expected {expected}"


def _has_template(folder: Path) -> bool:
    if _any(folder, TEMPLATES):
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(settings.get("chat_template"))


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)
