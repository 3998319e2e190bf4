"""The real trainer process with a publisher that only counts: run as a script by the tests."""

import os
import signal
import sys
from pathlib import Path

from asyncgrpo.config import Config
from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.process.ending import run_to_the_end
from asyncgrpo.sync.base import PublishReport, Snapshot
from asyncgrpo.training import trainer
from asyncgrpo.training.model.model import Policy
from asyncgrpo.training.publish import OnPublished


class CountingPublisher:
    """Serves nothing, attests nothing; a version is current as soon as it is handed over."""

    def __init__(
        self, config: Config, policy: Policy, on_published: OnPublished, first_version: int
    ) -> None:
        del config, policy
        self._on_published = on_published
        self._next = first_version
        self._kill_at = int(os.environ.get("KILL_AT_VERSION", "-1"))

    def publish(self, snapshot: Snapshot) -> int:
        assert snapshot.tensors
        version = self._next
        if version == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._next += 1
        self._on_published(PublishReport(f"policy-v{version:06d}", version, 0.0, 0.0, 0.0, None))
        return version

    def check(self) -> None: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...

    def drain_measurements(self) -> Aggregates:
        return {}


if __name__ == "__main__":
    step = int(os.environ["CHECKPOINT"]) if "CHECKPOINT" in os.environ else None
    run_to_the_end(lambda: trainer.run(Path(sys.argv[1]), step, CountingPublisher))
