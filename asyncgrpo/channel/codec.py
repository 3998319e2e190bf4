"""Messages to bytes: msgpack by msgspec, numpy arrays as an extension value; never pickle.

    array  ->  ext(ARRAY, dtype "<f4" | ndim u8 | dims u32 x ndim | data)  ->  array

Only booleans, integers and floats of up to 8 bytes travel: a frame can hold nothing that runs.
A decoded array is a copy, aligned, and its dtype and rank are those of the message's field.
"""

import math
import struct
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np

from asyncgrpo.channel.messages import ToTrainer, ToWorker
from asyncgrpo.errors import RunError

ARRAY: Final = 1  # our msgpack extension code
ARRAY_KINDS: Final = "biuf"
DTYPE_BYTES: Final = 3  # "<i4", "|u1"


class FrameError(RunError):
    """Bytes that are no message of ours; the link itself stays usable."""


def encode(message: ToTrainer | ToWorker) -> bytes:
    """The message's frame."""
    return _ENCODER.encode(message)


def decode_to_trainer(frame: bytes | memoryview) -> ToTrainer:
    """The message for the trainer in `frame`; FrameError where it is truncated or foreign."""
    return _decode(_TO_TRAINER, frame)


def decode_to_worker(frame: bytes) -> ToWorker:
    """The message for a worker in `frame`; FrameError where it is truncated or foreign."""
    return _decode(_TO_WORKER, frame)


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes | memoryview) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, TypeError, struct.error, RecursionError) as error:
        raise FrameError(
            f"a frame of {len(frame)} bytes on the link is no message of this version of "
            f"asyncgrpo ({error}); worker, trainer and launcher must run the same installation"
        ) from error


def encode_array(value: Any) -> msgspec.msgpack.Ext:
    """The enc_hook of msgspec: an array as an extension value; TypeError for anything else."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"only arrays of numbers travel on the link, got {type(value).__name__}")
    array = np.ascontiguousarray(value)
    dtype = array.dtype.newbyteorder("<").str.encode()
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    header = dtype + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
    content = array.reshape(-1).view(np.uint8).data if array.size else b""
    return msgspec.msgpack.Ext(ARRAY, b"".join((header, content)))  # one copy


def decode_ext(code: int, data: memoryview) -> Any:
    """The ext_hook of msgspec: the array back; ValueError where it is none of ours."""
    if code != ARRAY:
        raise ValueError(f"extension code {code}, expected {ARRAY}")
    dtype = bytes(data[:DTYPE_BYTES]).decode("ascii")
    if dtype[1:2] not in tuple(ARRAY_KINDS):
        raise ValueError(f"an array of dtype {dtype!r}, expected numbers")
    (ndim,) = struct.unpack_from("<B", data, DTYPE_BYTES)
    shape = struct.unpack_from(f"<{ndim}I", data, DTYPE_BYTES + 1)
    content = data[DTYPE_BYTES + 1 + 4 * ndim :]
    if len(content) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"{len(content)} bytes for an array {dtype} of shape {shape}")
    return np.frombuffer(bytes(content), dtype).reshape(shape)


def check_array(expected: type, value: Any) -> Any:
    """The dec_hook of msgspec: refuse an array of another dtype or rank than the field's."""
    if isinstance(value, np.ndarray) and (value.dtype, value.ndim) in _fitting(expected):
        return value
    if not isinstance(value, expected):
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value)
        raise TypeError(f"got {got}, expected {expected.__name__}")
    if isinstance(value, np.ndarray):
        _fitting(expected).add((value.dtype, value.ndim))
    return value


@cache
def _fitting(expected: type) -> set[tuple[np.dtype[Any], int]]:
    """The dtypes and ranks that were found to fit a field: asking jaxtyping takes long.

    No field of a message names a size, so nothing else of a shape can be wrong.
    """
    del expected
    return set()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=encode_array)
_TO_TRAINER: msgspec.msgpack.Decoder[ToTrainer] = msgspec.msgpack.Decoder(
    ToTrainer, ext_hook=decode_ext, dec_hook=check_array
)
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(
    ToWorker, ext_hook=decode_ext, dec_hook=check_array
)
