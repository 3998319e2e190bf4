"""Warns after 64, 128, ... consecutive groups without signal: such a run would hang silently.

    group scored  --gave | empty(reason)-->  a warning at each length that is new to the run
                                             RunError where no reward scored any of the last 256

Groups without signal are no error, since sampling is random. Each length is warned of once,
because a run with little signal has many droughts of 64. Reward functions that return None for
everything are a mistake, and end the run.
"""

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError

FIRST_WARNING = 64  # groups in a row; each next warning at twice as many
MOST_UNSCORED = 256  # groups in a row

WHY = {
    DropReason.NO_SIGNAL: "all rollouts of a group got the same reward",
    DropReason.UNSCORED: "every reward function returned None",
    DropReason.ALL_MASKED: "the hooks of rollout.loop masked every token",
    DropReason.ERROR: "a reward function or hook failed",
}


class Drought:
    """Counts groups in a row that were dropped."""

    def __init__(self) -> None:
        self._empty = 0
        self._unscored = 0
        self._next_warning = FIRST_WARNING

    def gave(self) -> None:
        """A group gave samples."""
        self._empty = self._unscored = 0

    def empty(self, reason: DropReason) -> str | None:
        """A group was dropped; returns the warning that is due, if any.

        Raises:
            RunError: nothing is ever scored.
        """
        self._empty += 1
        self._unscored = self._unscored + 1 if reason is DropReason.UNSCORED else 0
        if self._unscored >= MOST_UNSCORED:
            raise RunError(
                f"none of the last {self._unscored} groups was scored: every function of "
                f"rollout.rewards returned None for every rollout; expected numbers"
            )
        if self._empty < self._next_warning:
            return None
        self._next_warning *= 2
        return (
            f"none of the last {self._empty} groups gave anything to train on; of the latest, "
            f"{WHY.get(reason, reason)}: see rollout.rewards, the prompts' difficulty, "
            f"rollout.temperature"
        )
