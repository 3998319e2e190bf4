"""One line of the report: what was checked, what came out, and what was expected."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A figure against its bar; None = shown, not judged."""

    what: str
    value: float
    bar: float | None = None
    at_least: bool = False
    unit: str = ""

    @property
    def failed(self) -> bool:
        """True if the bar is missed; a value that is no number misses every bar."""
        if self.bar is None:
            return False
        met = self.value >= self.bar if self.at_least else self.value <= self.bar
        return not met

    def __str__(self) -> str:
        shown = f"{self.what:<64} {self.value:10.4g} {self.unit}"
        if self.bar is None:
            return shown
        sign, verdict = ">=" if self.at_least else "<=", "FAILED" if self.failed else "ok"
        return f"{shown}  {sign} {self.bar:g}  {verdict}"
