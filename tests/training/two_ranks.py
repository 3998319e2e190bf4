"""The same rows on one rank and on two: run under torchrun by test_parallel.py, and by itself.

RUN_DIR MODEL [OTHER]  ->  RUN_DIR/CASE/
    steps.json            loss and gradient norm of each step
    model.safetensors, optimizer.safetensors    after the last one
    step-000002/          a checkpoint before it
    resumed.json          the last step again, from OTHER/CASE/step-000002: of other ranks
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from asyncgrpo.config import Config
from asyncgrpo.ledger.checkpoint_layout import Checkpoint, TrainerState, open_checkpoint
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.packing.row import build_row
from asyncgrpo.process.ending import run_to_the_end
from asyncgrpo.records import Row
from asyncgrpo.training.checkpoint import gather, write_checkpoint
from asyncgrpo.training.orders import Train
from asyncgrpo.training.parallel import Ranks, join_ranks, leave_ranks, wait_for_ranks
from asyncgrpo.training.trainer import Trainer
from tests.training.fixtures import resolved
from tests.training.scripted_worker import make_group

STEPS = 3
MICRO_BATCHES = 2
CASES = {
    "none": {"sharding": "none", "optim": "sgd"},
    "fsdp2": {"sharding": "fsdp2", "optim": "sgd"},
    "none, adamw": {"sharding": "none", "optim": "adamw_torch"},
    "fsdp2, adamw": {"sharding": "fsdp2", "optim": "adamw_torch_fused"},
    "none, bfloat16": {"sharding": "none", "bf16": True},
    "fsdp2, bfloat16": {"sharding": "fsdp2", "bf16": True},
    "none, float16": {"sharding": "none", "fp16": True},
    "fsdp2, float16": {"sharding": "fsdp2", "fp16": True},
}


def rows_of(step: int, micro_batch: int) -> tuple[Row, Row]:
    first = 4 * step + 2 * micro_batch
    rows = (build_row(make_group(0, first + rank).samples) for rank in range(2))
    return next(rows), next(rows)


def denominator(rows: tuple[Row, Row]) -> float:
    return float(sum(row.term_target_T.size for row in rows))


def config_of(case: str, model: Path, run_dir: Path, num_ranks: int) -> Config:
    return resolved(model, run_dir, trainer={"nproc_per_node": num_ranks, **CASES[case]})


def take_step(trainer: Trainer) -> tuple[float, float]:
    """Each of two ranks forwards its row of a micro-batch; one alone forwards both."""
    for micro_batch in range(MICRO_BATCHES):
        rows = rows_of(trainer.step, micro_batch)
        for row in rows[trainer.ranks.rank :: trainer.ranks.world]:
            trainer._train(Train(row, denominator(rows), 0))
    trainer.step += 1
    return trainer._apply_gradient(1 / MICRO_BATCHES)


def save(trainer: Trainer, folder: Path) -> None:
    contents = gather(trainer.policy, trainer.optimizer)
    if trainer.ranks.is_first:
        optim, scale = trainer.config.trainer.optim, trainer._loss_scale
        state = TrainerState(
            trainer.step, 0, 1.0 if scale is None else scale.value, optim, contents.scalars
        )
        write_checkpoint(
            folder,
            contents,
            policy=trainer.policy,
            tokenizer=trainer.tokenizer,
            state=Ledger(10).state(step=trainer.step, policy_version=0, seed=42),
            trainer=state,
        )
    wait_for_ranks(trainer.ranks)


def resumed_step(config: Config, ranks: Ranks, checkpoint: Checkpoint) -> tuple[float, float]:
    trainer = Trainer(config, ranks, checkpoint)
    assert trainer.step == STEPS - 1
    return take_step(trainer)


def run(run_dir: Path, model: Path, ranks: Ranks, other: Path | None) -> None:
    for case in CASES:
        folder = run_dir / case
        folder.mkdir(parents=True, exist_ok=True)
        config = config_of(case, model, run_dir, ranks.world)
        trainer = Trainer(config, ranks, None)
        record = []
        for _ in range(STEPS - 1):
            record.append(take_step(trainer))
        save(trainer, folder)
        record.append(take_step(trainer))
        contents = gather(trainer.policy, trainer.optimizer)
        resumed = None
        if other is not None:
            checkpoint = open_checkpoint(other / case / f"step-{STEPS - 1:06d}")
            resumed = resumed_step(config, ranks, checkpoint)
        if ranks.is_first:
            (folder / "steps.json").write_text(json.dumps(record))
            (folder / "resumed.json").write_text(json.dumps(resumed))
            for name in ("model", "optimizer"):
                tensors = {key: value.clone() for key, value in getattr(contents, name).items()}
                save_file(tensors, folder / f"{name}.safetensors")


def main(run_dir: Path, model: Path, other: Path | None = None) -> None:
    ranks = join_ranks(use_gpu=False, timeout_s=200)
    run(run_dir, model, ranks, other)
    leave_ranks()


if __name__ == "__main__":
    run_to_the_end(lambda: main(*map(Path, sys.argv[1:])))
