"""The environment of recipes/counter.yaml: reach a number in small steps, and stop there.

reset(seed)        "Count to 7."
increment(step=3)  3     increment(step=3)  6     increment(step=1)  7     "Done."
get_reward()       1.0 where the count is the target, 0.0 elsewhere
"""

import random

MOST_TARGET = 9
MOST_STEP = 3


class Counter:
    """A count that goes up by 1, 2 or 3."""

    def __init__(self) -> None:
        self.target = self.count = 0

    def reset(self, seed: int) -> str:
        """Choose the target, the same for all rollouts of a group."""
        self.target = random.Random(seed).randint(1, MOST_TARGET)
        self.count = 0
        return f"Count to {self.target}."

    def increment(self, step: int) -> int:
        """Increase the count.

        Args:
            step: By how much: 1, 2 or 3.

        Returns:
            The count after it.
        """
        if step not in range(1, MOST_STEP + 1):
            raise ValueError(f"step is {step!r}, expected 1 to {MOST_STEP}")
        self.count += step
        return self.count

    def get_reward(self) -> float:
        """Tell whether the count stopped at the target."""
        return float(self.count == self.target)
