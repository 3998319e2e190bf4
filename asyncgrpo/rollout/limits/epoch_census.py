"""Notices an epoch of which no prompt was generated for: no step could ever follow it.

    see(epoch) --drop(reason)?-->  all of an epoch's prompts dropped?  -->  EmptyEpochError

An epoch's end shows by its count of prompts; a stream's, whose length nobody knows, by the first
prompt of the next pass. One of several workers knows of its own share of the prompts only: the
trainer puts together what they find.
"""

from collections import Counter

from asyncgrpo.channel.shares import ALONE, Share
from asyncgrpo.errors import RunError


class EmptyEpochError(RunError):
    """None of an epoch's prompts, or of this worker's share of them, was generated for."""

    def __init__(self, epoch: int, message: str) -> None:
        super().__init__(message)
        self.epoch = epoch


class EpochCensus:
    """Counts the prompts of an epoch, and those dropped before generation, by reason."""

    def __init__(self, num_prompts: int | None, share: Share = ALONE) -> None:
        """`num_prompts` are those of an epoch; None = nobody knows, and none is missed."""
        self._num_prompts = num_prompts
        self._share = share
        self._epoch = 0
        self._seen = 0
        self._reasons: Counter[str] = Counter()

    def see(self, epoch: int) -> None:
        """A prompt of the epoch came up.

        Raises:
            EmptyEpochError: the one before was dropped whole.
        """
        if epoch != self._epoch:
            if self._num_prompts is None:
                self._judge(self._seen)
            self._epoch, self._seen = epoch, 0
            self._reasons.clear()
        self._seen += 1

    def drop(self, reason: str) -> None:
        """The prompt just seen will not be generated for.

        Raises:
            EmptyEpochError: it was the last of one that was dropped whole.
        """
        self._reasons[reason] += 1
        if self._num_prompts is not None:
            start = self._epoch * self._num_prompts
            self._judge(self._share.num_ordinals(start, start + self._num_prompts))

    def _judge(self, num_prompts: int) -> None:
        if num_prompts and self._reasons.total() == num_prompts:
            reason, count = self._reasons.most_common(1)[0]
            raise EmptyEpochError(
                self._epoch,
                f"epoch {self._epoch}: none of the {num_prompts} prompts was generated for; "
                f"{count} of them: {reason}",
            )
