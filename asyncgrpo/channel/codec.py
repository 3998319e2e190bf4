"""Messages to bytes: msgpack by msgspec with the raw arrays behind it; never pickle.

    frame      bytes of envelope u64 | bytes of frame u64 | envelope | array | array | ...
    envelope   the message in msgpack; an array in it is its place: [dtype "<i4", offset, *shape]
    offset     from the end of the envelope; everything starts at a multiple of ALIGNMENT

Only arrays of booleans, integers and floats of up to 8 bytes travel: a frame holds no code. A
decoded array is a read-only view into its frame, and keeps the frame alive; its dtype and rank are
those of the message's field. A hand-over costs mostly copying, so an array is copied only once,
into its frame.
"""

import math
import struct
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from asyncgrpo.channel.messages import ToTrainer, ToWorker
from asyncgrpo.channel.wire_types import wire_type
from asyncgrpo.errors import RunError

HEADER: Final = struct.Struct("<QQ")
ALIGNMENT: Final = 8  # bytes of the widest number
MOST_DIMENSIONS: Final = 8
WIRE_DTYPES: Final = {
    name: np.dtype(name)
    for name in ("|b1", "|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")
}
_NAMES: Final = {dtype: name for name, dtype in WIRE_DTYPES.items()}


class FrameError(RunError):
    """Bytes that are no message; the link itself stays usable."""


def encode(message: msgspec.Struct) -> bytes:
    """The message's frame. Raises TypeError for a value neither plain nor an array of numbers."""
    arrays = _Arrays()
    envelope = msgspec.msgpack.Encoder(enc_hook=arrays.place).encode(message)
    start = HEADER.size + len(envelope)
    gap = _gap(start)
    header = HEADER.pack(len(envelope), start + gap + arrays.size)
    return b"".join((header, envelope, bytes(gap), *arrays.parts))


def decode_to_trainer(frame: bytes | memoryview) -> ToTrainer:
    """The message for the trainer in `frame`; FrameError where it is truncated or foreign."""
    return decode(ToTrainer, frame)


def decode_to_worker(frame: bytes | memoryview) -> ToWorker:
    """The message for a worker in `frame`; FrameError where it is truncated or foreign."""
    return decode(ToWorker, frame)


def decode(kind: Any, frame: bytes | memoryview) -> Any:
    """The message of type `kind` in `frame`; FrameError where it is truncated or foreign."""
    view = memoryview(frame).toreadonly()
    try:
        size, total = HEADER.unpack_from(view)
        end = HEADER.size + size
        if total != len(view) or end > total:
            raise ValueError(f"it should have {total} bytes, {size} of them in its envelope")
        take = partial(_take, view[end + _gap(end) :])
        decoder = msgspec.msgpack.Decoder(wire_type(kind), dec_hook=take)
        return decoder.decode(view[HEADER.size : end])
    except (msgspec.DecodeError, ValueError, TypeError, struct.error, RecursionError) as error:
        raise FrameError(
            f"a frame of {len(view)} bytes on the link is no message of this version of "
            f"asyncgrpo ({error}); worker, trainer and launcher must run the same installation"
        ) from error


class _Arrays:
    """The arrays of one message, in the order in which they follow its envelope."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self.parts: list[memoryview | bytes] = []

    def place(self, value: Any) -> tuple[Any, ...]:
        """The enc_hook of msgspec: takes an array, and returns its place."""
        name = _NAMES.get(value.dtype) if isinstance(value, np.ndarray) else None
        if name is None:
            got = value.dtype if isinstance(value, np.ndarray) else type(value)
            raise TypeError(f"only arrays of numbers travel on the link, got {got}")
        offset, gap = self.size, -value.nbytes % ALIGNMENT
        self.size += value.nbytes + gap
        self.parts += (np.ascontiguousarray(value).data, bytes(gap))
        return name, offset, *value.shape


def _take(arrays: memoryview, expected: Any, place: Any) -> np.ndarray:
    """The dec_hook of msgspec: the array at `place`, with the field's dtype and rank."""
    name, offset, *shape = place
    if name not in WIRE_DTYPES:
        raise ValueError(f"an array of dtype {name!r}, expected numbers")
    dtype = WIRE_DTYPES[name]
    if len(shape) > MOST_DIMENSIONS or {*map(type, place[1:])} != {int}:
        raise ValueError(f"no place of an array, at {offset!r:.40}")
    # With an offset below 0 numpy would read memory before the frame.
    end = offset + math.prod(shape) * dtype.itemsize
    if min(offset, *shape) < 0 or end > len(arrays):
        raise ValueError(f"an array {name} of shape {shape} at {offset} of {len(arrays)} bytes")
    array = np.ndarray(shape, dtype, arrays, offset)
    (kind,) = expected.__args__  # where wire_types.py put it
    if not _fits(array, name, kind):
        raise TypeError(f"got {dtype}{array.shape}, expected {kind.__name__}")
    # ZeroMQ puts short frames wherever there is room.
    return array if array.flags.aligned else array.copy()


def _fits(array: np.ndarray, name: str, kind: type) -> bool:
    """True if the array has its field's type; remembered, since jaxtyping is slow.

    No field of a message names a size, so dtype and rank decide.
    """
    key = (kind, name, array.ndim)
    if key in _FITTING:
        return True
    if isinstance(array, kind):
        _FITTING.add(key)
        return True
    return False


def _gap(size: int) -> int:
    """Bytes from `size` to the next multiple of ALIGNMENT."""
    return -size % ALIGNMENT


_FITTING: set[tuple[type, str, int]] = set()
