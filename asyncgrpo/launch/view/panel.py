"""The live panel of a run in a terminal: progress, reward, staleness, rates, queue, bottleneck.

    ╭─ demo ─────────────────────────────────────────╮
    │ step 12/60  ━━━━━━━╸                  20 %      │
    │ reward     0.62 -> 0.83        ▂▃▅▆▇            │
    │ ...                                            │
    ╰─ Ctrl-C saves a checkpoint and stops ──────────╯

Lines (checkpoints, warnings) scroll by above it and stay; the panel goes when the run ends.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncgrpo.diagnose.findings import diagnose
from asyncgrpo.diagnose.read import History
from asyncgrpo.launch.view.progress import EDGE, RunProgress

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 30
DIAGNOSE_EVERY_S = 5.0

ROWS = (  # label, metric, how it is written
    ("staleness", "sample/staleness_mean", "{:.2f} versions"),
    ("generation", "rollout/generated_tokens_per_s", "{:.0f} tokens/s"),
    ("training", "perf/wall_clock_trained_tokens_per_s", "{:.0f} tokens/s"),
    ("queue", "rollout/queue_size", "{:.0f} samples"),
    ("step took", "perf/step_s", "{:.2f} s"),
    ("waited", "perf/rollout_wait_s", "{:.2f} s of it for samples"),
)


class PanelView:
    """A panel that is redrawn in place."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._live: Live | None = None
        self._since = time.monotonic()
        self._bottleneck = "too early to say"
        self._diagnosed = 0.0

    def say(self, line: str) -> None:
        """A line above the panel."""
        self._console.print(Text(line))

    def waiting(self, name: str, seconds: float, doing: str) -> None:
        """Show what a server is doing, on one line that is written over."""
        width = max(20, self._console.width - 1)
        line = f"{name}, {seconds:.0f} s: {doing or 'nothing logged yet'}"
        self._draw(Text(line[:width], style="dim"))

    def show(self, progress: RunProgress) -> None:
        """Redraw the panel.

        It shows steps and syncs, so only unusual events get a line above it.
        """
        for line in progress.news:
            if line.startswith(("warning", "checkpoint")) or "skipped" in line:
                self.say(line)
        if progress.records and time.monotonic() - self._diagnosed > DIAGNOSE_EVERY_S:
            self._diagnosed = time.monotonic()
            self._bottleneck = bottleneck(progress)
        elapsed = time.monotonic() - self._since
        self._draw(render(self._title, progress, self._bottleneck, elapsed))

    def close(self) -> None:
        """Take the panel away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, renderable: Panel | Text) -> None:
        if self._live is None:
            self._live = Live(renderable, console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(renderable, refresh=True)


def render(title: str, progress: RunProgress, bottleneck: str, elapsed_s: float) -> Panel:
    """The panel for a run so far."""
    table = Table.grid(padding=(0, 2))
    table.add_row("step", _steps_done(progress))
    table.add_row("reward", Text(_reward(progress.rewards)))
    for label, metric, form in ROWS:
        if metric in progress.latest:
            table.add_row(label, form.format(progress.latest[metric]))
    table.add_row("policy", f"version {progress.policy_version}")
    table.add_row("bottleneck", bottleneck)
    table.add_row("time", _duration(elapsed_s))
    return Panel(
        Group(table),
        title=title,
        title_align="left",
        subtitle="Ctrl-C saves a checkpoint and stops",
        subtitle_align="left",
        expand=False,
    )


def bottleneck(progress: RunProgress) -> str:
    """The side that limits the speed so far."""
    steps = tuple(int(record.get("step", 0)) for record in progress.records)
    found = diagnose(History(Path(), steps, tuple(dict(r) for r in progress.records)))
    if found.verdict == "unknown":
        return "too early to say"
    return f"{found.verdict}: {found.means.partition(':')[0]}"


def sparkline(values: Sequence[float]) -> str:
    """The last values as bars between their smallest and largest."""
    shown = values[-SPARK_WIDTH:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    top = len(BARS) - 1
    return "".join(BARS[round(top * (value - low) / span) if span else 0] for value in shown)


def _steps_done(progress: RunProgress) -> Table:
    row = Table.grid(padding=(0, 1))
    fraction = progress.fraction
    of = f"/{progress.goal.max_steps}" if progress.goal.max_steps else ""
    if fraction is None:
        row.add_row(f"{progress.step}{of}")
    else:
        bar = ProgressBar(total=1.0, completed=fraction, width=SPARK_WIDTH)
        row.add_row(f"{progress.step}{of}", bar, f"{100 * fraction:.0f} %")
    return row


def _reward(rewards: Sequence[float]) -> str:
    if not rewards:
        return "none yet"
    recent = rewards[-EDGE:]
    return f"{rewards[0]:.3f} -> {sum(recent) / len(recent):.3f}  {sparkline(rewards)}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
