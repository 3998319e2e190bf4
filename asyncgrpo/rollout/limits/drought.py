"""How long no group has given anything to train on: no step can follow, and nobody would say so.

    group scored  --gave | empty(reason)-->  a warning after 64, 128, 256, ... in a row
                                             RunError where no reward scored any of the last 256

Groups without signal can end (sampling is random), so they are only told, and each length once:
a run with little signal has droughts of 64 all along. Reward functions that return None for
everything are a mistake.
"""

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError

FIRST_WARNING = 64  # groups in a row; then at twice as many as ever before
MOST_UNSCORED = 256  # groups in a row

WHY = {
    DropReason.NO_SIGNAL: "all rollouts of a group got the same reward",
    DropReason.UNSCORED: "every reward function returned None",
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
        """A group was dropped; what to tell the user, if it is time to.

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
