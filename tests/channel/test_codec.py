"""Every message survives the link; nothing else does."""

import contextlib
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncgrpo.channel.codec import FrameError, decode_to_trainer, decode_to_worker, encode
from asyncgrpo.channel.messages import (
    Begin,
    DropReason,
    GroupReady,
    Heartbeat,
    Hello,
    Measured,
    PromptDropped,
)
from asyncgrpo.metrics.values import Aggregate
from asyncgrpo.records import Sample, SampleKey, VersionSpan


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    n, k = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    int32 = st.integers(-(2**31), 2**31 - 1)
    float32 = st.floats(width=32)
    return Sample(
        key=SampleKey(draw(st.integers(0, 3)), draw(st.integers(0, 99)), draw(st.integers(0, 7))),
        input_ids=draw(hnp.arrays(np.int32, n, elements=int32)),
        trained=draw(hnp.arrays(np.uint8, n, elements=st.integers(0, 1))),
        sampler_logprobs=draw(hnp.arrays(np.float32, n, elements=float32)),
        advantage=draw(st.floats(allow_nan=False)),
        policy_version=draw(st.integers(0, 99)),
        top_ids=draw(st.none() | hnp.arrays(np.int32, (n, k), elements=int32)),
        top_logprobs=draw(st.none() | hnp.arrays(np.float32, (n, k), elements=float32)),
        version_spans=draw(st.just(()) | st.just((VersionSpan(3, 0, n),))),
        candidate_ids=draw(st.none() | hnp.arrays(np.int32, st.integers(0, 9), elements=int32)),
        candidate_counts=draw(st.none() | hnp.arrays(np.int32, n, elements=int32)),
    )


def assert_same(a: Sample, b: Sample) -> None:
    for name in a.__struct_fields__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right


@given(st.lists(samples(), max_size=3))
def test_a_group_comes_out_as_it_went_in(group: list[Sample]):
    decoded = decode_to_trainer(encode(GroupReady(0, 5, 17, tuple(group))))
    assert isinstance(decoded, GroupReady)
    assert (decoded.epoch, decoded.position, decoded.row_index) == (0, 5, 17)
    for before, after in zip(group, decoded.samples, strict=True):
        assert_same(before, after)


@pytest.mark.parametrize(
    "message",
    [
        Hello(0, 12, 100),
        PromptDropped(1, 2, DropReason.NO_SIGNAL),
        Measured({"reward": Aggregate(1.0, 2.0, -1.0, float("inf"))}),
        Heartbeat(0.5, "scorer"),
    ],
)
def test_small_messages_come_out_as_they_went_in(message):
    assert decode_to_trainer(encode(message)) == message


def test_messages_to_the_worker_come_out_as_they_went_in():
    message = Begin("policy-v000000", 0, 3, ((0, 3), (5, 9)), 100, None)
    assert decode_to_worker(encode(message)) == message


def test_a_message_for_the_other_side_is_refused():
    with pytest.raises(FrameError, match="same installation"):
        decode_to_worker(encode(Hello(0, 1, 2)))


@given(samples(), st.data())
def test_a_truncated_frame_is_refused(sample: Sample, data: st.DataObject):
    frame = encode(GroupReady(0, 0, 0, (sample,)))
    with pytest.raises(FrameError):
        decode_to_trainer(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_refused_by_name(garbage: bytes):
    with pytest.raises(FrameError):
        decode_to_trainer(garbage)


@given(samples(), st.data())
def test_a_flipped_byte_gives_a_message_or_a_frame_error(sample: Sample, data: st.DataObject):
    frame = bytearray(encode(GroupReady(0, 0, 0, (sample,))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        decode_to_trainer(bytes(frame))


def test_an_array_of_the_wrong_type_is_refused():
    sample = Sample(
        SampleKey(0, 0, 0),
        np.zeros(2, np.float64),  # type: ignore[arg-type]
        np.zeros(2, np.uint8),
        np.zeros(2, np.float32),
        0.0,
        0,
    )
    with pytest.raises(FrameError, match="float64"):
        decode_to_trainer(encode(GroupReady(0, 0, 0, (sample,))))


def test_an_array_of_objects_never_leaves():
    with pytest.raises(TypeError, match=r"only arrays of numbers.*object"):
        encode(Measured({"x": np.array([object()])}))  # type: ignore[dict-item]


def test_a_decoded_array_is_where_its_frame_is_and_cannot_be_written_to():
    frame = encode(GroupReady(0, 0, 0, (a_sample(),)))
    (sample,) = decoded(frame).samples
    for array in (sample.input_ids, sample.top_ids, sample.top_logprobs):
        assert array is not None
        assert np.shares_memory(array, np.frombuffer(frame, np.uint8))
        assert array.flags.aligned
        assert not array.flags.writeable


@given(st.integers(0, 7))
def test_a_frame_may_start_at_any_address(shift: int):
    frame = encode(GroupReady(0, 0, 0, (a_sample(),)))
    (sample,) = decoded(memoryview(bytes(shift) + frame)[shift:]).samples
    assert_same(sample, a_sample())
    assert sample.input_ids.flags.aligned
    assert sample.sampler_logprobs.flags.aligned


def test_an_array_that_is_a_part_of_another_arrives_as_itself():
    top_ids = np.arange(60, dtype=np.int32).reshape(10, 6)[::2, ::2]
    sample = msgspec.structs.replace(a_sample(), top_ids=top_ids, top_logprobs=None)
    (arrived,) = decoded(encode(GroupReady(0, 0, 0, (sample,)))).samples
    assert_same(arrived, sample)


def test_bytes_after_the_message_are_refused():
    frame = encode(Heartbeat(0.5, "scorer"))
    with pytest.raises(FrameError, match=f"should have {len(frame)} bytes"):
        decode_to_trainer(frame + b"0")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (["<i4", -4, 3], "at -4"),  # before the arrays: numpy would read it
        (["<i4", 0, -3], r"shape \[-3\]"),
        (["<i4", 8, 3], "at 8 of 16"),  # beyond them
        (["<i4", 0, 2**63, 2**63], "of 16 bytes"),
        (["<i4", 2**64 - 1, 1], "of 16 bytes"),
        (["<i4", 0.0, 3], "no place"),
        (["<i4", 0, "3", 10**18], "no place"),
        (["<i4", 0, *[1] * 9], "no place"),
        (["|O8", 0, 1], "expected numbers"),
        (["<i4"], "offset|unpack"),
        ("<i4", "."),
        (7, "."),
        ([["<i4"], 0, 3], "unhashable"),
    ],
)
def test_an_array_is_nowhere_but_in_its_frame(place: object, why: str):
    sample = {
        "key": SampleKey(0, 0, 0),
        "trained": ["|u1", 0, 3],
        "sampler_logprobs": ["<f4", 0, 3],
    }
    sample |= {"advantage": 0.0, "policy_version": 0, "input_ids": place}
    with pytest.raises(FrameError, match=why):
        decode_to_trainer(framed(a_group_of(sample), bytes(16)))


def test_an_extension_is_refused():
    message = {"type": "Measured", "aggregates": msgspec.msgpack.Ext(77, b"pickle")}
    with pytest.raises(FrameError):
        decode_to_trainer(framed(message, b""))


def test_what_is_framed_by_hand_arrives():
    sample = {
        "key": SampleKey(0, 1, 2), "input_ids": ["<i4", 0, 2], "trained": ["|u1", 8, 2],
        "sampler_logprobs": ["<f4", 0, 2], "advantage": 0.0, "policy_version": 0,
    }  # fmt: skip
    frame = framed(a_group_of(sample), np.array([7, 9], np.int32).tobytes() + b"\0\1" + bytes(6))
    (arrived,) = decoded(frame).samples
    assert arrived.key == SampleKey(0, 1, 2)
    assert arrived.input_ids.tolist() == [7, 9]
    assert arrived.trained.tolist() == [0, 1]


def a_sample() -> Sample:
    return Sample(
        SampleKey(0, 1, 2),
        np.arange(5, dtype=np.int32),
        np.array([0, 0, 1, 1, 1], np.uint8),
        np.full(5, -0.5, np.float32),
        1.5,
        3,
        top_ids=np.arange(10, dtype=np.int32).reshape(5, 2),
        top_logprobs=np.full((5, 2), -1.0, np.float32),
    )


def a_group_of(sample: object) -> dict[str, object]:
    group = {"epoch": 0, "position": 0, "row_index": 0, "samples": [sample]}
    return {"type": "GroupReady", **group}


def decoded(frame: bytes | memoryview) -> GroupReady:
    message = decode_to_trainer(frame)
    assert isinstance(message, GroupReady)
    return message


def framed(message: object, arrays: bytes) -> bytes:
    """A frame as another program may make it."""
    envelope = msgspec.msgpack.encode(message)
    content = envelope + bytes(-len(envelope) % 8) + arrays
    return struct.pack("<QQ", len(envelope), 16 + len(content)) + content
