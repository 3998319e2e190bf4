"""Rank 0's part of a run: worker, publisher, ledger, metrics, checkpoints.

the loop  --publish, commit, report, save-->  RankZero  -->  Publisher, Inbox, Reporter, files
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncgrpo.channel import messages
from asyncgrpo.channel.sockets import TrainerLink
from asyncgrpo.config import Config, known
from asyncgrpo.errors import RunError
from asyncgrpo.ledger.checkpoint_layout import (
    Checkpoint,
    TrainerState,
    checkpoints_of,
    prune_checkpoints,
)
from asyncgrpo.ledger.state_file import write_state
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.metrics.trackers import open_sinks
from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.sync.backend import next_version
from asyncgrpo.sync.base import PublishReport, Snapshot
from asyncgrpo.training.checkpoint import Contents, write_checkpoint
from asyncgrpo.training.director import Director, Schedule
from asyncgrpo.training.intake.batches import BatchSettings
from asyncgrpo.training.intake.inbox import Inbox, InboxSettings
from asyncgrpo.training.intake.nothing_trained import nothing_trained
from asyncgrpo.training.intake.soundness import SampleRules
from asyncgrpo.training.loss.loss_sums import loss_metrics
from asyncgrpo.training.model.flops import Utilization
from asyncgrpo.training.model.model import Policy, Tokenizer
from asyncgrpo.training.orders import End
from asyncgrpo.training.publish import MakePublisher
from asyncgrpo.training.reporting import Reporter, StepReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    finite: bool  # False: the weights stayed as they were
    seconds: Mapping[str, float]  # by phase
    lowered_scale: float | None = None  # float16: gradients overflowed, and the loss scale fell


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run as its rank 0 needs it."""

    config: Config
    run_dir: Path
    policy: Policy
    tokenizer: Tokenizer
    num_ranks: int
    utilization: Utilization | None  # None = hardware or model is not known


class RankZero:
    """Everything that only rank 0 does."""

    def __init__(
        self, run: TrainingRun, make_publisher: MakePublisher, checkpoint: Checkpoint | None
    ) -> None:
        """Listens for the worker and starts the publisher; nothing is answered before `begin`."""
        config, run_dir = run.config, run.run_dir
        self.num_tokens = 0 if checkpoint is None else checkpoint.trainer.num_tokens
        self._config = config
        self._run_dir = run_dir
        self._run = run
        self._state = None if checkpoint is None else checkpoint.state
        ledger = Ledger(1) if self._state is None else Ledger.restore(self._state)
        sinks = open_sinks(config, run_dir)
        self.reporter = Reporter(run_dir, sinks, ledger.counts, run.utilization)
        self._link = TrainerLink(run_dir)
        self._inbox: Inbox | None = None
        self._director: Director | None = None
        self._served: PublishReport | None = None
        self._step_started = time.perf_counter()
        at_least = 0 if self._state is None else self._state.policy_version
        first = next_version(Path(known(config.sync.path)), at_least)
        self._publisher = make_publisher(config, run.policy, self._on_published, first)

    @property
    def director(self) -> Director:
        """The source of this rank's orders, once begun."""
        assert self._director is not None, "not begun"
        return self._director

    @property
    def inbox(self) -> Inbox:
        """The worker's messages, once begun."""
        assert self._inbox is not None, "not begun"
        return self._inbox

    def begin(self, step: int) -> None:
        """Waits until what was published is served and attested, then answers the worker."""
        self._publisher.wait(known(self._config.server.vllm_server_timeout))
        served = self._served
        assert served is not None, "nothing was published"
        self._inbox = Inbox(
            self._link,
            inbox_settings(self._config, self._run.num_ranks, self._run.policy.vocab_size),
            policy=messages.Published(served.policy, served.version),
            state=self._state,
        )
        self._director = Director(
            self._inbox,
            self._publisher,
            schedule(self._config, self._run.num_ranks),
            step=step,
        )
        self._step_started = time.perf_counter()

    def publish(self, snapshot: Snapshot) -> None:
        """Hands over a snapshot; from now on the weights have its version."""
        version = self._publisher.publish(snapshot)
        if self._inbox is None:
            return
        self._inbox.set_version(version)
        if self._config.rollout.max_staleness == 0:
            self._publisher.wait(known(self._config.server.vllm_server_timeout))

    def commit(self, outcome: StepOutcome, end: End) -> None:
        """Resolves the samples of a step taken, tells the workers, observes it."""
        now = time.perf_counter()
        if not outcome.finite:
            self.reporter.record_skip(
                outcome.step, outcome.loss, outcome.grad_norm, outcome.lowered_scale
            )
        self.inbox.commit(end.batches, step=outcome.step, trained=outcome.finite)
        rows = [row for batch in end.batches for row in batch.planned]
        self.num_tokens += sum(row.num_tokens for row in rows)
        self.reporter.record_step(
            StepReport(
                batches=end.batches,
                token_budget=known(self._config.trainer.token_budget),
                loss=outcome.loss,
                grad_norm=outcome.grad_norm,
                learning_rate=outcome.learning_rate,
                seconds=outcome.seconds,
                rollout_wait_s=end.waited_s,
                step_s=now - self._step_started,
                num_tokens=self.num_tokens,
            )
        )
        self._step_started = now

    def report(self, step: int, loss_sums: list[Aggregates]) -> None:
        """Writes a log window."""
        ledger = self.inbox.ledger
        assert ledger is not None
        self.reporter.record_ledger(self.inbox.counts())
        self.reporter.write_window(
            [
                loss_metrics(loss_sums),
                *self.inbox.drain_measurements(),
                self._publisher.drain_measurements(),
            ],
            step=step,
            policy_version=self.inbox.version,
            epoch=self.inbox.counts().resolved / ledger.num_prompts,
        )

    def save(self, contents: Contents, trainer: TrainerState) -> None:
        """Writes a checkpoint, then removes the oldest beyond the limit."""
        directory = checkpoints_of(self._run_dir)
        started = time.perf_counter()
        state = self.inbox.state(
            step=trainer.step,
            policy_version=self.inbox.version,
            seed=self._config.rollout.seed,
        )
        path = write_checkpoint(
            directory,
            contents,
            policy=self._run.policy,
            tokenizer=self._run.tokenizer,
            state=state,
            trainer=trainer,
        )
        try:
            write_state(self._run_dir, state)
            prune_checkpoints(directory, self._config.checkpoint.save_total_limit)
        except OSError as error:
            raise RunError(
                f"{error}, after the checkpoint of step {trainer.step}, which is whole: free some "
                f"space in {self._run_dir}, then `asyncgrpo resume`"
            ) from error
        seconds = time.perf_counter() - started
        self.reporter.events.write(
            "checkpoint_saved", step=trainer.step, path=str(path), seconds=round(seconds, 3)
        )
        counts = self.inbox.counts()
        self.reporter.events.write(
            "ledger",
            step=trainer.step,
            queued=counts.queued,
            trained=counts.trained,
            dropped=counts.dropped,
            reasons=counts.dropped_by_reason,
        )
        logger.info("checkpoint of step %d saved in %.1f s: %s", trainer.step, seconds, path)

    def finish(self, step: int) -> None:
        """Waits for the last publish, after the last order.

        Raises:
            RunError: the prompts were used up before the first step.
        """
        self._publisher.wait(known(self._config.server.vllm_server_timeout))
        if step == 0 and not self.inbox.stopping:
            raise nothing_trained(self.inbox.counts())

    def close(self) -> None:
        """Stops the worker and the publisher, whatever happened."""
        if self._inbox is not None:
            self._inbox.close()
        self._publisher.close()
        self._link.close()
        self.reporter.close()

    def _on_published(self, published: PublishReport) -> None:
        """Announces what is served and attested; runs in the publisher's thread."""
        self._served = published
        if self._inbox is not None:
            self._inbox.announce(messages.Published(published.policy, published.version))
        self.reporter.events.write(
            "policy_published",
            policy=published.policy,
            version=published.version,
            publish_s=round(published.publish_s, 3),
            attest_logp_diff=published.attest_logp_diff,
        )


def inbox_settings(config: Config, num_ranks: int, vocab_size: int) -> InboxSettings:
    """The inbox's part of the configuration and the model."""
    trainer, budget = config.trainer, known(config.trainer.token_budget)
    num_top = config.loss.num_sampler_logprobs if config.loss.score_centering else 0
    rules = SampleRules(vocab_size, num_top, config.rollout.failure_budget)
    return InboxSettings(
        batches=BatchSettings(num_ranks, budget, config.rollout.max_staleness, rules),
        worker_timeout_s=config.rollout.rollout_worker_timeout,
        step_tokens=trainer.gradient_accumulation_steps * num_ranks * budget,
        num_epochs=None if trainer.max_steps > 0 else trainer.num_train_epochs,
        num_workers=config.rollout.workers,
    )


def schedule(config: Config, num_ranks: int) -> Schedule:
    """The director's part of the configuration."""
    return Schedule(
        num_ranks=num_ranks,
        accumulation=config.trainer.gradient_accumulation_steps,
        max_steps=config.trainer.max_steps if config.trainer.max_steps > 0 else None,
        weight_sync_steps=config.sync.weight_sync_steps,
        logging_steps=config.tracking.logging_steps,
        save_steps=config.checkpoint.save_steps,
        per_step=config.loss.normalization == "step",
        token_budget=known(config.trainer.token_budget),
    )
