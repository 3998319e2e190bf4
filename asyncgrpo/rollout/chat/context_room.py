"""Whether a text can fit in the context, at the cost of the tokens there is room for.

    text[:16 characters for each token of room] --encode--> far too many tokens?  it cannot fit
    twice as many characters, ...               --encode--> far too many tokens?  it cannot fit
    all of it                                               it may fit

A tool may return megabytes, and tokenising one takes seconds. Where a text is cut, the tokens
around the cut are not those of the whole text, so a beginning shows nothing until it has far more
of them than there is room for. Text of few tokens, such as a tokenizer that drops spaces makes of
them, is tokenised to its end.
"""

from collections.abc import Callable, Sequence

CHARACTERS_PER_TOKEN = 16  # of text that is told at once: prose has 4
FAR_TOO_MANY = 2.0  # times the room
SHORT = 16_384  # characters, tokenised in milliseconds: not worth a look


def cannot_fit(encode: Callable[[str], Sequence[int]], text: str, room: int) -> bool:
    """Whether `text` has more tokens than `room`; False says nothing."""
    length = max(CHARACTERS_PER_TOKEN * room, SHORT)
    while length < len(text):
        if len(encode(text[:length])) > FAR_TOO_MANY * room:
            return True
        length *= 2
    return False
