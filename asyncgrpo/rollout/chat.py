"""A conversation becomes token ids, once per group, by the tokenizer's chat template.

messages --template--> prompt ids        output ids --decode, special tokens skipped--> text
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32

from asyncgrpo.config.rollout import RolloutConfig
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.group import Messages


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    eos_token_id: Any
    name_or_path: str

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class Chat:
    """Renders conversations as the policy sees them."""

    def __init__(self, tokenizer: Tokenizer, rollout: RolloutConfig) -> None:
        self._tokenizer = tokenizer
        self._template = _read_template(rollout.chat_template)
        self._kwargs = dict(rollout.chat_template_kwargs)
        if self._template is None and not tokenizer.chat_template:
            raise DataError(
                f"the tokenizer of `{tokenizer.name_or_path}` has no chat template; set "
                "rollout.chat_template to a Jinja template or a file that holds one"
            )

    def render(self, messages: Messages) -> Int32[np.ndarray, "P"]:
        """Token ids of `messages` with the assistant's turn opened. Blocks: a template is code.

        Raises:
            DataError: the template refuses the conversation, or renders nothing.
        """
        try:
            token_ids = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self._kwargs,
            )
        except Exception as error:
            raise DataError(f"the chat template failed: {type(error).__name__}: {error}") from error
        prompt_ids = np.asarray(token_ids, np.int32)
        if prompt_ids.size == 0:
            raise DataError("the chat template rendered no token")
        return prompt_ids

    def text(self, output_ids: Any) -> str:
        """What a turn says, without special tokens."""
        return str(self._tokenizer.decode(output_ids, skip_special_tokens=True))


def _read_template(given: str | None) -> str | None:
    """The template itself, where a file is named."""
    if given is None or "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"rollout.chat_template `{given}` is neither a Jinja template nor a readable file: "
            f"{error.strerror}"
        ) from error
