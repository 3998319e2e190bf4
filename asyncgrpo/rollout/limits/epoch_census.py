"""Finds an epoch whose prompts were all dropped: no step could ever follow it.

    see(epoch) --drop(reason)?-->  all of an epoch's prompts dropped?  -->  EmptyEpochError

The end of an epoch shows by its number of prompts. A stream of unknown length shows it by the
first prompt of the next pass. One of several workers counts its own share of the prompts; the
trainer combines their findings.
"""

from collections import Counter

from asyncgrpo.channel.shares import ALONE, Share
from asyncgrpo.errors import RunError


class EmptyEpochError(RunError):
    """All prompts of an epoch, or of this worker's share of it, were dropped."""

    def __init__(self, epoch: int, message: str) -> None:
        super().__init__(message)
        self.epoch = epoch


class EpochCensus:
    """Counts the prompts of an epoch, and those dropped before generation, by reason."""

    def __init__(self, num_prompts: int | None, share: Share = ALONE) -> None:
        """Counts `num_prompts` an epoch.

        None: a stream of unknown length; its epoch ends when the next begins.
        """
        self._num_prompts = num_prompts
        self._share = share
        self._epoch = 0
        self._seen = 0
        self._reasons: Counter[str] = Counter()

    def see(self, epoch: int) -> None:
        """A prompt of the epoch came up.

        Raises:
            EmptyEpochError: the epoch before was dropped whole.
        """
        if epoch != self._epoch:
            if self._num_prompts is None:
                self._judge(self._seen)
            self._epoch, self._seen = epoch, 0
            self._reasons.clear()
        self._seen += 1

    def drop(self, reason: str) -> None:
        """The prompt just seen was dropped.

        Raises:
            EmptyEpochError: it was the last prompt of an epoch that was dropped whole.
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
