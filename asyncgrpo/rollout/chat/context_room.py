"""Tells early, from its beginning, that a long text cannot fit in the context.

    text[:16 characters for each token of room] --encode--> far too many tokens?  it cannot fit
    twice as many characters, ...               --encode--> far too many tokens?  it cannot fit
    all of it                                               it may fit

A tool may return megabytes, and tokenising one takes seconds. A prefix proves nothing near the
limit, because tokens at the cut differ; twice the room is proof. A text that makes few tokens is
tokenised to its end.
"""

from collections.abc import Callable, Sequence

from asyncgrpo.errors import DataError

CHARACTERS_PER_TOKEN = 16  # of the first prefix; prose has 4
FAR_TOO_MANY = 2.0  # times the room
SHORT = 16_384  # characters, tokenised in milliseconds: not worth a look


class ContextFullError(DataError):
    """The results of tools leave no room for a reply."""


def cannot_fit(encode: Callable[[str], Sequence[int]], text: str, room: int) -> bool:
    """True if `text` certainly has more tokens than `room`; False proves nothing."""
    length = max(CHARACTERS_PER_TOKEN * room, SHORT)
    while length < len(text):
        if len(encode(text[:length])) > FAR_TOO_MANY * room:
            return True
        length *= 2
    return False
