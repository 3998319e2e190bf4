"""Rank 0's orders, by which all ranks take part in the same collectives.

Train, Train, ..., End        a step
Wait                          nothing to train yet; still alive
Finish                        the run is over
"""

import msgspec

from asyncgrpo.channel.codec import decode, encode
from asyncgrpo.records import Row
from asyncgrpo.training.intake.batches import Batch


class Train(msgspec.Struct, frozen=True, tag=True):
    """Order: forward and backward of this rank's row of a micro-batch."""

    row: Row
    denominator: float  # the loss of the row is its sum over terms / denominator
    policy_version: int  # of the weights it trains
    counts: bool = True  # False: a copy that only keeps this rank in step, its gradient is 0


class End(msgspec.Struct, frozen=True, tag=True):
    """Order: the optimizer step over what was accumulated, then what the fields ask for."""

    gradient_scale: float  # from the accumulated gradient to that of the step's loss
    publish: bool
    save: bool
    log: bool
    batches: tuple[Batch, ...] = ()  # of the step; rank 0 alone has them
    waited_s: float = 0.0  # of the step, for samples; known to rank 0 alone


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Order: nothing to train yet."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Order: the run is over, but for what the fields ask for."""

    save: bool
    log: bool  # steps were taken since the last log window


Order = Train | End | Wait | Finish


def encode_order(order: Order) -> bytes:
    """The order as bytes."""
    return encode(order)


def decode_order(data: bytes) -> Order:
    """The order that `encode_order` wrote."""
    return decode(Order, data)
