"""The messages between worker, trainer and launcher; the trainer's rank 0 is the hub.

    worker    --Hello, GroupReady, PromptDropped, EpochEmpty,
                Measured, Heartbeat, Exhausted, Failed-->      trainer
    trainer   --Begin, Published, Progress, Stop-->            worker
    launcher  --StopRequested-->                               trainer

An *ordinal* counts prompts over epochs: ordinal = epoch x num_prompts + position.
"""

from enum import StrEnum

import msgspec

from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.records import Sample


class DropReason(StrEnum):
    """The reason a prompt or sample was resolved without being trained."""

    FILTERED = "filtered"
    NO_SIGNAL = "no_signal"
    UNSCORED = "unscored"
    ALL_MASKED = "all_masked"  # its rewards differ, and its hooks masked every token
    STALE = "stale"
    OVERSIZE = "oversize"
    TOO_LONG = "too_long"
    ERROR = "error"


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a worker process."""

    worker: int
    pid: int
    num_prompts: int


class GroupReady(msgspec.Struct, frozen=True, tag=True):
    """A scored group with signal; resolved once each of its samples is trained or dropped."""

    epoch: int
    position: int
    row_index: int
    samples: tuple[Sample, ...]


class PromptDropped(msgspec.Struct, frozen=True, tag=True):
    """A prompt resolved by the worker without samples."""

    epoch: int
    position: int
    reason: DropReason


class EpochEmpty(msgspec.Struct, frozen=True, tag=True):
    """All of a worker's prompts of an epoch were dropped; `why` is for the user.

    Sent by one of several workers: the run goes on while another worker's prompts were not. A
    worker alone ends the run by itself.
    """

    epoch: int
    why: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Observations since the worker's last report, by metric name."""

    aggregates: Aggregates


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """The oldest heartbeat of the worker's loops, in seconds."""

    oldest_s: float
    loop: str


class Exhausted(msgspec.Struct, frozen=True, tag=True):
    """All prompts of the worker, in the epochs asked for, are resolved or offered."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot go on; `message` is for the user."""

    message: str
    worker: int = 0


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Answer to Hello: the place to start. Prompts in `resolved` are not dispatched.

    Each of several workers dispatches its own share (`shares.py`).
    """

    policy: str  # served name
    policy_version: int
    first_ordinal: int
    resolved: tuple[tuple[int, int], ...]  # half-open intervals of ordinals
    allowance_tokens: int
    end_ordinal: int | None  # first ordinal not wanted; None = no end (max_steps decides)


class Published(msgspec.Struct, frozen=True, tag=True):
    """`policy` is served, attested, and current."""

    policy: str
    policy_version: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Sent after each step: the allowance of this worker, and its tokens consumed so far."""

    step: int
    allowance_tokens: int
    consumed_tokens: int  # raw tokens of its samples trained or dropped since its Hello


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The run is over; close."""


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    """The request to finish the step, checkpoint and stop."""


ToTrainer = (
    Hello
    | GroupReady
    | PromptDropped
    | EpochEmpty
    | Measured
    | Heartbeat
    | Exhausted
    | Failed
    | StopRequested
)
ToWorker = Begin | Published | Progress | Stop
