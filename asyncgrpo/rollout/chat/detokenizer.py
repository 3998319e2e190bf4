"""The text of generated tokens, from a table where the tokenizer is byte-level.

    ids --table--> bytes of the tokens in a row --UTF-8--> text      byte-level BPE
    ids --the tokenizer's own decode--> text                         any other

A token of byte-level BPE stands for bytes of its own, whatever is around it, so a text is the
bytes of its tokens in a row. That costs a small part of the tokenizer's own decode, which would be
the largest cost of a long rollout in the worker.
"""

from typing import Any, Protocol

import numpy as np

SKIP, KEEP = True, False  # special tokens
NO_BYTE = 0xFFFF  # in no alphabet
PROBE = " Don 't stop , it 's 1 . 5 % !\n\n\t<b>naïve — 東京</b> 🙂 ?  \r\n"


class Decodes(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def encode(self, text: Any, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class Detokenizer:
    """Returns the text of token ids as `tokenizer.decode` does."""

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self._spoken: _Pieces | None = None
        self._all: _Pieces | None = None
        if _is_byte_level(tokenizer):
            self._spoken, self._all = (
                _Pieces(tokenizer, skip_special=skip) for skip in (SKIP, KEEP)
            )
            if not self._agrees():
                self._spoken = self._all = None

    def text(self, token_ids: Any) -> str:
        """The text without special tokens."""
        return self._decode(self._spoken, token_ids, skip=SKIP)

    def text_with_specials(self, token_ids: Any) -> str:
        """The text with special tokens as they are written."""
        return self._decode(self._all, token_ids, skip=KEEP)

    def _decode(self, pieces: "_Pieces | None", token_ids: Any, *, skip: bool) -> str:
        try:
            if pieces is not None:
                return pieces.join(token_ids).decode("utf-8", "replace")
        except IndexError:  # an id beyond the vocabulary, or of a token that was added since
            pass
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=skip))

    def _agrees(self) -> bool:
        """True if the tables agree with a tokenizer that may clean texts up."""
        ids = self._tokenizer.encode(PROBE, add_special_tokens=True)
        return all(
            self._decode(pieces, ids, skip=skip)
            == self._tokenizer.decode(ids, skip_special_tokens=skip)
            for pieces, skip in ((self._spoken, SKIP), (self._all, KEEP))
        )


class _Pieces:
    """The bytes of every token, one after another; an unused id has none."""

    def __init__(self, tokenizer: Any, *, skip_special: bool) -> None:
        token_of = tokenizer.backend_tokenizer.id_to_token
        special = tokenizer.added_tokens_decoder.values()
        silent = {token.content for token in special if token.special and skip_special} | {None}
        highest = max(tokenizer.get_vocab().values(), default=-1)  # holes: not len(tokenizer) - 1
        tokens = [token_of(token_id) for token_id in range(highest + 1)]
        pieces = [b"" if token in silent else _bytes_of(token) for token in tokens]
        self._bytes = np.frombuffer(b"".join(pieces), np.uint8)
        self._lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths

    def join(self, token_ids: Any) -> bytes:
        """The bytes of these tokens in a row; IndexError for an id above the table's."""
        ids = np.asarray(token_ids, np.int32).view(np.uint32)  # no id counts from the end
        lengths = self._lengths[ids]
        starts = lengths.cumsum() - lengths
        shifts = (self._starts[ids] - starts).repeat(lengths)  # from text to table
        return self._bytes[shifts + np.arange(shifts.size)].tobytes()


def _is_byte_level(tokenizer: Any) -> bool:
    from tokenizers import decoders

    backend = getattr(tokenizer, "backend_tokenizer", None)
    return isinstance(getattr(backend, "decoder", None), decoders.ByteLevel)


def _bytes_of(token: str) -> bytes:
    """The bytes of a token's characters; a token outside the alphabet is plain text."""
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _alphabet() -> dict[int, int]:
    """Byte-level BPE's alphabet: printable Latin-1, and U+0100 and up for other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    stands_for = {0x100 + i: byte for i, byte in enumerate(others)}
    return stands_for | dict.fromkeys(others, NO_BYTE)


_ALPHABET = _alphabet()
