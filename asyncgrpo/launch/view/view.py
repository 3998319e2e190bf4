"""The view of a run: lines of text, or a panel (panel.py).

view.say ...          what was decided, started, warned of
view.waiting ...      what a server is doing until it answers
view.show(progress)   after each log window and each sync
view.close()          the panel goes, the lines stay
"""

from typing import Protocol, TextIO

from asyncgrpo.launch.view.progress import RunProgress

WAIT_LINE_S = 10.0  # a log gets a line this often at most


class View(Protocol):
    """Shows the progress of a run."""

    def say(self, line: str) -> None:
        """A line that stays."""
        ...

    def waiting(self, name: str, seconds: float, doing: str) -> None:
        """Show that `name` is not ready after `seconds`; `doing` is its last log message."""
        ...

    def show(self, progress: RunProgress) -> None:
        """Show the progress so far."""
        ...

    def close(self) -> None:
        """Nothing more will be shown."""
        ...


class LineView:
    """For logs and pipes: one line per step, one per sync."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._told: dict[str, float] = {}  # name -> seconds waited at its last line

    def say(self, line: str) -> None:
        """Write a line at once."""
        print(line, file=self._output, flush=True)

    def waiting(self, name: str, seconds: float, doing: str) -> None:
        """Write a line now and then."""
        first = -WAIT_LINE_S if doing else 0.0  # what there is to tell is told at once
        if seconds - self._told.get(name, first) >= WAIT_LINE_S:
            self._told[name] = seconds
            self.say(f"{name}, {seconds:.0f} s: {doing or 'nothing logged yet'}")

    def show(self, progress: RunProgress) -> None:
        """Write what is new since the last time."""
        for line in progress.news:
            self.say(line)

    def close(self) -> None:
        """Nothing to put away."""
