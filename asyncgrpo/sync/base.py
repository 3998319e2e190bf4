"""Publishing beside training: the trainer hands over a snapshot and goes on.

    trainer   publish(snapshot) -> version      check()            wait()
                   | (at most one waits)            ^ SyncError       ^
    thread         v                                |                 |
              write -> load on servers -> attest -> on_published -> prune

A snapshot that comes while another still waits replaces it. Versions count the syncs that came due,
so the number of the one replaced is never served. The first failure ends publishing: it is raised
by every later call of the trainer's, and the servers are left generating. No collective runs here.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from asyncgrpo.errors import SyncError
from asyncgrpo.metrics.values import Aggregates, Recorder
from asyncgrpo.sync.attest import Attestor, Probe
from asyncgrpo.sync.backend import Server, SyncBackend, Timings

log = logging.getLogger(__name__)

RETIRE_TIMEOUT_S = 10.0  # a server that is gone has nothing loaded
CLOSE_TIMEOUT_S = 120.0  # a publish under way may hold a server paused: let it end


@dataclass(frozen=True)
class Snapshot:
    """Weights on the host, as `tensors.py` makes them; never written to after construction."""

    tensors: Mapping[str, Tensor]
    probe: Probe | None = None  # None where sync.attest is off


@dataclass(frozen=True)
class PublishReport:
    """A version that every server serves."""

    policy: str  # served name
    version: int
    publish_s: float  # from the hand-over to the last server's attestation
    pause_s: float
    transfer_s: float
    attest_logp_diff: float | None  # mean over tokens, of the worst server; None = not attested


@dataclass(frozen=True)
class _Job:
    version: int
    snapshot: Snapshot
    handed_over: float


class Publisher:
    """Publishes snapshots from a thread of its own; lives on rank 0 alone."""

    def __init__(
        self,
        backend: SyncBackend,
        connect: Callable[[], Sequence[Server]],
        *,
        on_published: Callable[[PublishReport], None],
        attestor: Attestor | None = None,
        first_version: int = 0,
    ) -> None:
        """Start the thread.

        Args:
            backend: how weights reach the servers.
            connect: makes the clients; called in the thread, whose event loop they live in.
            on_published: called in the thread once a version is served and attested.
            attestor: compares what is served with each snapshot's probe; None = do not.
            first_version: what the next snapshot is numbered.
        """
        self._backend = backend
        self._connect = connect
        self._on_published = on_published
        self._attestor = attestor
        self._next_version = first_version
        self._recorder = Recorder()
        self._changed = threading.Condition()  # guards all below
        self._waiting: _Job | None = None
        self._running: _Job | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, snapshot: Snapshot) -> int:
        """Hand over a snapshot; returns at once with the version it will be served as.

        Raises:
            SyncError: an earlier publish failed.
        """
        with self._changed:
            self._raise_error()
            if self._closing:
                raise SyncError("a snapshot was handed over after the publisher was closed")
            version = self._next_version
            self._next_version += 1  # a sample's age is counted in these, so each one counts
            if self._waiting is not None:
                self._recorder.record("sync/coalesced_count", 1.0)
            self._waiting = _Job(version, snapshot, time.monotonic())
            self._loop.call_soon_threadsafe(self._wake.set)
            return version

    def check(self) -> None:
        """Raise the error of the thread, if there was one."""
        with self._changed:
            self._raise_error()

    def wait(self, timeout: float | None = None) -> None:
        """Return once all that was handed over is served.

        Raises:
            SyncError: a publish failed, or is not done within `timeout` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._idle(), timeout)
            self._raise_error()
            if not self._idle():
                job = self._running or self._waiting
                assert job is not None
                raise SyncError(
                    f"version {job.version} is not served {time.monotonic() - job.handed_over:.0f} "
                    "s after it was handed over; see the servers' logs"
                )

    def close(self) -> None:
        """End the thread: after the publish under way, without the one that waits.

        Call it on every way out of training: a publish that is cut off leaves servers paused.
        """
        with self._changed:
            if not self._closing and self._error is None:
                self._loop.call_soon_threadsafe(self._wake.set)
            self._closing = True
        self._thread.join(CLOSE_TIMEOUT_S)

    def drain_measurements(self) -> Aggregates:
        """Observations since the last drain, by metric name."""
        with self._changed:
            return self._recorder.drain()

    def _idle(self) -> bool:
        return self._waiting is None and self._running is None

    def _raise_error(self) -> None:
        if isinstance(self._error, SyncError):
            raise SyncError(str(self._error)) from self._error
        if self._error is not None:
            raise self._error

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the trainer's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        """Takes snapshots / gives versions served / waits for a hand-over / woken by it."""
        servers = self._connect()
        try:
            while (job := await self._next_job()) is not None:
                await self._publish_one(job, servers)
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
        finally:
            await self._retire(servers)
            for server in servers:
                await server.aclose()

    async def _retire(self, servers: Sequence[Server]) -> None:
        try:
            async with asyncio.timeout(RETIRE_TIMEOUT_S):
                await self._backend.retire(servers)
        except (SyncError, TimeoutError) as error:
            log.info("what this run loaded stays loaded: %s", error or "no answer in time")

    async def _next_job(self) -> _Job | None:
        while True:
            self._wake.clear()
            with self._changed:
                if self._closing:
                    return None
                if self._waiting is not None:
                    self._running, self._waiting = self._waiting, None
                    return self._running
            await self._wake.wait()

    async def _publish_one(self, job: _Job, servers: Sequence[Server]) -> None:
        timings = await self._backend.publish(job.version, job.snapshot.tensors, servers)
        difference = await self._attest(job, servers)
        report = PublishReport(
            policy=self._backend.policy_name(job.version),
            version=job.version,
            publish_s=time.monotonic() - job.handed_over,
            pause_s=timings.pause_s,
            transfer_s=timings.transfer_s,
            attest_logp_diff=difference,
        )
        self._measure(report, timings)
        self._on_published(report)
        await self._backend.prune(job.version, servers)

    async def _attest(self, job: _Job, servers: Sequence[Server]) -> float | None:
        probe = job.snapshot.probe
        if self._attestor is None or probe is None:
            return None

        def reload(server: Server) -> Awaitable[None]:
            return self._backend.reload(job.version, server)

        return await self._attestor.attest(
            self._backend.policy_name(job.version),
            job.version,
            probe,
            servers,
            reload,
        )

    def _measure(self, report: PublishReport, timings: Timings) -> None:
        with self._changed:
            self._recorder.record("sync/publish_s", report.publish_s)
            self._recorder.record("perf/weight_sync_pause_s", timings.pause_s)
            self._recorder.record("perf/weight_sync_transfer_s", timings.transfer_s)
            if report.attest_logp_diff is not None:
                self._recorder.record("sync/attest_logp_diff", report.attest_logp_diff)
