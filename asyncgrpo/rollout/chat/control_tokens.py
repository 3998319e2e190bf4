"""Tokens that are no text, and messages whose text spells one.

    added tokens of the tokenizer that are special, and its eos --> id: spelling

The text `<|im_end|>` in a prompt or in a tool's result becomes the token that ends a message, as
it does on a server's chat endpoint: the policy trains on what it will be asked. A run says so
once, for it is seldom meant, and a web page can do it on purpose.
"""

import logging
import re
from typing import Any, Protocol

from asyncgrpo.rollout.group import Messages

log = logging.getLogger(__name__)


class SpecialTokens(Protocol):
    """The part of a transformers tokenizer that is used here."""

    eos_token_id: Any
    eos_token: Any
    added_tokens_decoder: Any


def special_tokens(tokenizer: SpecialTokens) -> dict[int, str]:
    """Tokens that are no text, as id -> spelling in templates."""
    added = tokenizer.added_tokens_decoder.items()
    special = {int(token): str(each.content) for token, each in added if each.special}
    if tokenizer.eos_token_id is not None:
        special[int(tokenizer.eos_token_id)] = str(tokenizer.eos_token)
    return special


class ControlTokenNotice:
    """Tells, once in a run, of a message whose text spells a control token."""

    def __init__(self, tokenizer: SpecialTokens) -> None:
        spellings = sorted(filter(None, special_tokens(tokenizer).values()), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, spellings))) if spellings else None

    def look(self, messages: Messages) -> None:
        """Warns of the first message that spells one."""
        if self._spelled is None:
            return
        for message in messages:
            found = self._spelled.search(str(message.get("content", "")))
            if found is not None:
                self._spelled = None
                log.warning(
                    "a message of role `%s` has the text `%s`, which the model reads as its "
                    "control token; remove it where this is not meant (told once)",
                    message["role"],
                    found[0],
                )
                return
