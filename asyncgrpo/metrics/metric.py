"""One row of the catalogue: a metric's name, its unit, its question.

The unit follows from the name's suffix and the reduction from its last part (`window.py`), so
neither can disagree with the name. A part in braces stands for one name of the run's own: a
reward, a staleness.
"""

from dataclasses import dataclass

from asyncgrpo.metrics.window import Reduction, reduction_of

UNITS_BY_SUFFIX = (
    ("_tokens_per_s", "tokens/s"),
    ("_per_step", "per step"),
    ("_mfu", "0 to 1"),
    ("_frac", "0 to 1"),
    ("_s", "seconds"),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, or a family of them where the pattern has parts in braces."""

    pattern: str
    answers: str
    worry: str = ""  # when to look closer; empty where no value is bad in itself
    unit: str = ""  # empty = as the suffix says
    always: bool = False  # of a count: 0, not absent, in a window in which nothing happened

    @property
    def reduction(self) -> Reduction:
        """The reduction of a window's observations to one value."""
        return reduction_of(self.pattern)

    @property
    def unit_text(self) -> str:
        """The unit, from the row or from the name's suffix."""
        if self.unit:
            return self.unit
        return next((u for suffix, u in UNITS_BY_SUFFIX if self.pattern.endswith(suffix)), "")
