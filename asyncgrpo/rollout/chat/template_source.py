"""The chat template of a recipe or of a model's folder, without loading the tokenizer.

    rollout.chat_template   a Jinja template, or a file that holds one
    chat_template.jinja     in the folder; or the key `chat_template` of tokenizer_config.json

The folder's own is needed before the worker starts; the worker asks the tokenizer itself.
"""

import json
from pathlib import Path
from typing import Any, cast

from asyncgrpo.errors import DataError

FILE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"


def given_template(given: str | None) -> str | None:
    """The recipe's template, or the contents of the file that is named in its place.

    Raises:
        DataError: it is neither.
    """
    if given is None or "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"rollout.chat_template `{given}` is neither a Jinja template nor a readable file: "
            f"{error.strerror}"
        ) from error


def folder_template(folder: Path) -> str | None:
    """The template in a model's folder; None where it has none of these."""
    try:
        return (folder / FILE).read_text(encoding="utf-8")
    except OSError:
        template = _settings(folder).get("chat_template")
    if isinstance(template, list):  # several by name
        named = {each["name"]: each["template"] for each in cast("list[dict[str, str]]", template)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def spellings(folder: Path) -> dict[str, str]:
    """The special tokens that a template may write, by name: `bos_token` and the like."""
    named = {k: v for k, v in _settings(folder).items() if k.endswith("_token")}
    texts = {k: v["content"] if isinstance(v, dict) else v for k, v in named.items()}
    return {k: v for k, v in texts.items() if isinstance(v, str)}


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}
