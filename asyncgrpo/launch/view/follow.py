"""Follows the metrics and events of a run and shows new ones.

Takes lines that were appended to metrics.jsonl and events.jsonl, gives RunProgress to a view.
Polls the files, because not every file system can notify.
"""

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Self

from asyncgrpo.config import Config
from asyncgrpo.launch.run_dir import RunDirectory
from asyncgrpo.launch.view.progress import Goal, RunProgress, Tail, advance
from asyncgrpo.launch.view.view import View

logger = logging.getLogger(__name__)

LOOK_S = 0.5


class Follower:
    """Shows the progress of a run while the block runs; older lines are not shown."""

    def __init__(self, run: RunDirectory, config: Config, view: View) -> None:
        self._view = view
        self._metrics = Tail(run.metrics, from_end=True)
        self._events = Tail(run.events, from_end=True)
        self._broken = False
        self.progress = RunProgress(goal_of(config))

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._look()

    async def _follow(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        """Show what is new; if the view fails, the run goes on without it."""
        if self._broken:
            return
        try:
            self.progress = advance(self.progress, self._metrics.read(), self._events.read())
            self._view.show(self.progress)
        except Exception:
            self._broken = True
            logger.exception("progress is not shown any more")


def goal_of(config: Config) -> Goal:
    """The goal of a run with this configuration."""
    if config.trainer.max_steps > 0:
        return Goal(max_steps=config.trainer.max_steps)
    return Goal(num_epochs=config.trainer.num_train_epochs)
