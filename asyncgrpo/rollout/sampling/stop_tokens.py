"""The tokens that end a reply, by the tokenizer and the model's generation config.

    tokenizer.eos_token_id  +  generation_config.json: eos_token_id (one or a list)  -->  ids

vLLM stops at all of them. A turn that a user's loop made elsewhere may carry no finish reason; then
its last token tells whether it ended by itself.
"""

import json
import logging
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

log = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"


def stop_tokens(tokenizer_eos: int | None, model: str, revision: str | None) -> frozenset[int]:
    """Ids of the tokens that end a reply of `model` (folder or hub name).

    Of a model of the hub the file is read from the cache, where the server has put it.
    """
    found = {int(tokenizer_eos)} if tokenizer_eos is not None else set[int]()
    file = _file_of(model, revision)
    if file is not None:
        found |= _eos_of(file)
    return frozenset(found)


def _file_of(model: str, revision: str | None) -> Path | None:
    folder = Path(model)
    if folder.is_dir():
        file = folder / GENERATION_CONFIG
        return file if file.is_file() else None
    try:
        cached = try_to_load_from_cache(model, GENERATION_CONFIG, revision=revision)
    except ValueError:  # no name of the hub
        return None
    return Path(cached) if isinstance(cached, str) else None


def _eos_of(file: Path) -> set[int]:
    try:
        given: Any = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        log.warning("%s: its eos_token_id is not read: %s", file, error)
        return set()
    ids: list[Any] = given if isinstance(given, list) else [given]
    return {each for each in ids if isinstance(each, int) and not isinstance(each, bool)}
