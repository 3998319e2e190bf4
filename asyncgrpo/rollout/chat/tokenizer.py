"""The policy's tokenizer."""

from typing import Any

from asyncgrpo.config import Config
from asyncgrpo.errors import DataError


def load_tokenizer(config: Config) -> Any:
    """Load the policy's tokenizer.

    Raises:
        DataError: there is none.
    """
    # Slow to import: a second.
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            config.model.name_or_path,
            revision=config.model.revision,
            trust_remote_code=config.model.trust_remote_code,
        )
    except Exception as error:
        raise DataError(
            f"model.name_or_path `{config.model.name_or_path}` has no tokenizer that loads: {error}"
        ) from error
