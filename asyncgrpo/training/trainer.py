"""The trainer process: samples to steps to served weights.

    torchrun --nproc-per-node R -m asyncgrpo.training.trainer RUN_DIR [--checkpoint STEP]
                                                                 R = 1: without torchrun

    load -> resume -> publish -> attest -> Begin to the worker ->

        orders:  Train  -> forward, loss, backward         of this rank's row
                 End    -> clip, optimizer step -> ledger -> publish -> Progress -> metrics -> save
                 Finish -> save -> Stop to the worker -> exit code 0

Rank 0 alone talks to worker, servers and files (`RankZero`); every rank runs the same loop over
the same orders, so all take part in the same collectives.
"""

from asyncgrpo.process.loading import collect_from_now, load_without_collecting

if __name__ == "__main__":
    load_without_collecting()

import argparse
import logging
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from asyncgrpo.config import Config, known, load_resolved
from asyncgrpo.errors import CheckpointError, UserError
from asyncgrpo.ledger.checkpoint_layout import (
    Checkpoint,
    TrainerState,
    checkpoints_of,
    choose_checkpoint,
    set_aside_after,
)
from asyncgrpo.ledger.run_end import reached_end
from asyncgrpo.process.ending import run_to_the_end
from asyncgrpo.process.log_format import LOST_RANK, is_debug, start_log
from asyncgrpo.process.title import process_title, take_title
from asyncgrpo.training.checkpoint import gather, load_optimizer, rehearse_save
from asyncgrpo.training.director import follow
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.loss.loss_sums import LossSums
from asyncgrpo.training.model.flops import measure_utilization
from asyncgrpo.training.model.model import compute_dtype, load_policy, load_tokenizer
from asyncgrpo.training.model.rehearsal import rehearse
from asyncgrpo.training.model.row_tensors import RowTensors
from asyncgrpo.training.optimizer import (
    LearningRate,
    LossScale,
    SkipGuard,
    build_optimizer,
    clip_gradients,
    gradient_norm,
    is_finite,
    scale_gradients,
)
from asyncgrpo.training.orders import End, Finish, Order, Train, Wait
from asyncgrpo.training.parallel import (
    Ranks,
    gather_aggregates,
    is_lost_rank,
    join_ranks,
    leave_ranks,
    local_loss_scale,
    shard,
    sum_gradients,
    sum_over_ranks,
    wait_for_ranks,
)
from asyncgrpo.training.publish import MakePublisher, make_publisher, probe_ids, snapshot
from asyncgrpo.training.rank_zero import RankZero, StepOutcome, TrainingRun
from asyncgrpo.training.timing import PhaseTimer

logger = logging.getLogger(__name__)


class Trainer:
    """One rank: model, optimizer, and the loop over orders."""

    def __init__(self, config: Config, ranks: Ranks, checkpoint: Checkpoint | None) -> None:
        path = None if checkpoint is None else checkpoint.path
        self.config = config
        self.ranks = ranks
        loss_settings = LossSettings.from_config(config.loss)
        loss_settings.correction.rehearse(config.loss, loss_settings.limits, ranks.device)
        self.policy = load_policy(config, path, ranks.device)
        self.tokenizer = load_tokenizer(config.model)
        rehearse(self.policy.model, ranks.device)
        if ranks.is_first and config.checkpoint.save_steps is not None:
            rehearse_save(self.policy, self.tokenizer, Path(known(config.run.dir)))
        self._shard()
        self.optimizer = build_optimizer(self.policy.scorer, config.trainer)
        self._probe_ids = probe_ids(config, self.policy, len(self.tokenizer))
        self._rates = LearningRate(config.trainer)
        self._loss_settings = replace(
            loss_settings, router_aux_loss_coef=self.policy.scorer.router_aux_loss_coef
        )
        self._local_scale = local_loss_scale(self.policy.scorer, ranks)
        self._loss_scale = LossScale() if config.trainer.fp16 else None
        self._skips = SkipGuard()
        self._timer = PhaseTimer(ranks.device)
        self._loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._sums = LossSums({})
        self.step = 0  # finished
        self.num_tokens = 0  # forwarded by all ranks since the run began
        if checkpoint is not None:
            self._restore(checkpoint)

    def run(self, orders: Iterable[Order], rank_zero: RankZero | None) -> None:
        """Follows the orders until Finish."""
        self._seed()
        self._timer.drain()  # the first publish is no part of a step
        for order in orders:
            match order:
                case Train():
                    self._train(order)
                case End():
                    self._end(order, rank_zero)
                case Wait():
                    pass
                case Finish():
                    if order.log:
                        self._report(rank_zero)
                    if order.save:
                        self._save(rank_zero)

    def publish(self, rank_zero: RankZero | None) -> None:
        """Hands the weights as they are to the publisher."""
        with self._timer.phase("weight_sync"):
            with self._timer.phase("weight_sync_barrier"):
                wait_for_ranks(self.ranks)
            taken = snapshot(self.config, self.policy, self._probe_ids)
            if rank_zero is not None:
                rank_zero.publish(taken)

    def _train(self, order: Train) -> None:
        """Adds the gradient of one row."""
        row = RowTensors.from_row(order.row, self.ranks.device, order.policy_version)
        with self._timer.phase("fwd_bwd"):
            with self._timer.phase("fwd"):
                scores = self.policy.scorer(row, self.config.rollout.temperature)
                loss, sums = policy_loss(scores, row, self._loss_settings, order.denominator)
            factor = self._local_scale * (self._loss_scale.value if self._loss_scale else 1.0)
            (loss * (factor if order.counts else 0.0)).backward()
        if order.counts:
            self._loss += loss.detach()
            self._sums = self._sums.merge(sums)

    def _end(self, order: End, rank_zero: RankZero | None) -> None:
        """Takes the optimizer step, then publishes, reports and saves as ordered."""
        rate = self._rates.apply(self.optimizer, self.step)
        with self._timer.phase("optimizer"):
            loss, norm = self._apply_gradient(order.gradient_scale)
        self.step += 1
        finite = is_finite(loss, norm)
        if not is_finite(loss):
            self._refuse_unsound_weights()
        lowered = self._lowered_scale(loss)
        if order.publish:
            self.publish(rank_zero)
        seconds = self._timer.drain()  # on every rank, or a GPU's events pile up
        if rank_zero is not None:
            outcome = StepOutcome(
                step=self.step,
                loss=loss,
                grad_norm=norm,
                learning_rate=rate,
                finite=finite,
                seconds=seconds,
                lowered_scale=lowered,
            )
            rank_zero.commit(outcome, order)
            self.num_tokens = rank_zero.num_tokens
        self._skips.record(finite=finite, step=self.step, excused=lowered is not None)
        if order.log:
            self._report(rank_zero)
        if order.save:
            self._save(rank_zero)
        self._seed()

    def _apply_gradient(self, scale: float) -> tuple[float, float]:
        """Sums over ranks, scales, clips and steps; gives the step's loss and gradient norm.

        Where either is not finite the weights stay as they are, on every rank alike.
        """
        model, trainer = self.policy.scorer, self.config.trainer
        sum_gradients(model, self.ranks)
        loss_scale = self._loss_scale.value if self._loss_scale else 1.0
        parameters = [p for p in model.parameters() if p.grad is not None]
        norm = gradient_norm(scale_gradients(parameters, scale / loss_scale))
        loss = sum_over_ranks(self._loss * scale).item()
        norm_value = norm.item()
        finite = is_finite(loss, norm_value)
        if finite:
            clip_gradients(parameters, norm, trainer.max_grad_norm)
            self.optimizer.step()
        if self._loss_scale is not None:
            self._loss_scale.update(finite=finite)
        self.optimizer.zero_grad(set_to_none=True)
        self._loss.zero_()
        return loss, norm_value

    def _refuse_unsound_weights(self) -> None:
        """Raises a `HookError`, on every rank, if the correction made the loss what it is."""
        count = torch.tensor(self._sums.num_unsound, device=self.ranks.device)
        self._loss_settings.correction.refuse_unsound(int(sum_over_ranks(count)))

    def _lowered_scale(self, loss: float) -> float | None:
        """The loss scale, where it fell because scaled gradients, and they alone, overflowed."""
        scale = self._loss_scale
        return scale.value if scale is not None and scale.fell and is_finite(loss) else None

    def _report(self, rank_zero: RankZero | None) -> None:
        """Gathers the window's loss sums of all ranks, once per window."""
        gathered = gather_aggregates(self._sums.aggregates(), self.ranks)
        self._sums = LossSums({})
        if rank_zero is not None:
            rank_zero.report(self.step, gathered)

    def _save(self, rank_zero: RankZero | None) -> None:
        contents = gather(self.policy, self.optimizer)
        if rank_zero is not None:
            trainer = TrainerState(
                step=self.step,
                num_tokens=self.num_tokens,
                loss_scale=self._loss_scale.value if self._loss_scale else 1.0,
                optimizer=self.config.trainer.optim,
                scalars=contents.scalars,
            )
            rank_zero.save(contents, trainer)

    def _restore(self, checkpoint: Checkpoint) -> None:
        load_optimizer(checkpoint, self.policy, self.optimizer, self.config.trainer.optim)
        self.step = checkpoint.trainer.step
        self.num_tokens = checkpoint.trainer.num_tokens
        if self._loss_scale is not None:
            self._loss_scale = LossScale(checkpoint.trainer.loss_scale)

    def _seed(self) -> None:
        """Seeds dropout by (seed, step, rank) alone, so that a resume repeats it."""
        seeds = (self.config.trainer.seed, self.step, self.ranks.rank)
        torch.manual_seed(hash(seeds) & (2**63 - 1))

    def _shard(self) -> None:
        config, ranks = self.config.trainer, self.ranks
        compute = compute_dtype(self.config)
        is_sharded = known(config.sharding) == "fsdp2" and ranks.world > 1
        if is_sharded or compute is not None:
            shard(
                self.policy.scorer,
                self.policy.layers,
                ranks,
                compute=compute,
                replicate=not is_sharded,
            )


def refuse_another_order(config: Config, checkpoint: Checkpoint | None) -> None:
    """Refuses a seed that orders the prompts anew: positions of the ledger would not hold.

    Raises CheckpointError.
    """
    if checkpoint is None or checkpoint.state.seed == config.rollout.seed:
        return
    raise CheckpointError(
        f"the run began with rollout.seed {checkpoint.state.seed} and it is {config.rollout.seed} "
        f"now, which orders the prompts anew: some would be trained twice and others never; "
        f"resume with rollout.seed={checkpoint.state.seed}"
    )


def train(
    run_dir: Path, step: int | None = None, make_publisher: MakePublisher = make_publisher
) -> None:
    """Trains the run of `run_dir` to its end, on every rank.

    Args:
        run_dir: of the run; all that is known about it is there.
        step: of the checkpoint to go on from; None = the newest, if any.
        make_publisher: builds what brings weights to the servers.
    """
    config = load_resolved(run_dir)
    checkpoint = choose_checkpoint(checkpoints_of(run_dir), step, logger.warning)
    refuse_another_order(config, checkpoint)
    if checkpoint is not None and reached_end(config, checkpoint.state):
        logger.info(
            "the run has reached its end at step %d: nothing to train; raise trainer.max_steps or "
            "trainer.num_train_epochs to go on",
            checkpoint.state.step,
        )
        return
    ranks = join_ranks(
        use_gpu=bool(known(config.trainer.devices)), timeout_s=float(config.trainer.ddp_timeout)
    )
    take_title(f"{process_title('trainer', known(config.run.name))} rank {ranks.rank}")
    trainer = Trainer(config, ranks, checkpoint)
    if ranks.is_first:
        _lead(trainer, run_dir, checkpoint, make_publisher)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 is asked too, and orders the end
        trainer.publish(None)
        trainer.run(follow(), None)
    leave_ranks()


def _lead(
    trainer: Trainer, run_dir: Path, checkpoint: Checkpoint | None, make_publisher: MakePublisher
) -> None:
    """Serves what is loaded, then trains, on rank 0."""
    if checkpoint is not None:
        set_aside_after(checkpoints_of(run_dir), checkpoint.state.step)
    config, policy, ranks = trainer.config, trainer.policy, trainer.ranks
    utilization = measure_utilization(policy, ranks.device, compute_dtype(config), ranks.world)
    run = TrainingRun(config, run_dir, policy, trainer.tokenizer, ranks.world, utilization)
    rank_zero = RankZero(run, make_publisher, checkpoint)
    try:
        trainer.publish(rank_zero)
        rank_zero.begin(trainer.step)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: rank_zero.inbox.request_stop())
        trainer.run(rank_zero.director, rank_zero)
        rank_zero.finish(trainer.step)
    finally:
        rank_zero.close()


def main() -> int:
    """Runs one trainer process; its exit code."""
    collect_from_now()  # before the model: garbage there may be gigabytes
    parser = argparse.ArgumentParser(prog="python -m asyncgrpo.training.trainer")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="default: the newest")
    arguments = parser.parse_args()
    return run(arguments.run_dir.resolve(), arguments.checkpoint)


def run(
    run_dir: Path, step: int | None = None, make_publisher: MakePublisher = make_publisher
) -> int:
    """Runs `train` and returns the exit code; a user's mistake is a message, no traceback."""
    start_log()
    transformers.logging.disable_progress_bar()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher acts on Ctrl-C
    try:
        train(run_dir, step, make_publisher)
    except UserError as error:
        logger.error("%s", error, exc_info=is_debug())  # noqa: TRY400 - else a message alone
        return 1
    except RuntimeError as error:
        if not is_lost_rank(error):
            raise
        logger.error(  # noqa: TRY400 - a lost rank is a message, no traceback
            "%s (%s); the first rank to end says why, and `asyncgrpo resume` goes on from the "
            "newest checkpoint",
            LOST_RANK,
            str(error).splitlines()[0],
        )
        return 1
    return 0


if __name__ == "__main__":
    run_to_the_end(main)
