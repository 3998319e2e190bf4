"""Two ranks train the same rows as one: run under torchrun by test_parallel.py.

RUN_DIR MODEL  ->  RUN_DIR/SHARDING.json: losses and norms, RUN_DIR/SHARDING.safetensors: weights
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from asyncgrpo.training.checkpoint import gather
from asyncgrpo.training.orders import Train
from asyncgrpo.training.parallel import join_ranks, leave_ranks
from asyncgrpo.training.trainer import Trainer
from tests.training.fixtures import resolved
from tests.training.scripted_worker import make_group

STEPS = 3
MICRO_BATCHES = 2


def rows_of(step: int, micro_batch: int) -> tuple[Row, Row]:
    first = 4 * step + 2 * micro_batch
    rows = (build_row(make_group(0, first + rank).samples) for rank in range(2))
    return next(rows), next(rows)


def denominator(rows: tuple[Row, Row]) -> float:
    return float(sum(row.term_target_T.size for row in rows))


def main(run_dir: Path, model: Path) -> None:
    ranks = join_ranks(use_gpu=False, timeout_s=60)
    for sharding in ("none", "fsdp2"):
        config = resolved(
            model, run_dir, trainer={"sharding": sharding, "nproc_per_node": 2, "optim": "sgd"}
        )
        trainer = Trainer(config, ranks, None)
        record = []
        for step in range(STEPS):
            for micro_batch in range(MICRO_BATCHES):
                rows = rows_of(step, micro_batch)
                trainer._train(Train(rows[ranks.rank], denominator(rows), 0))
            record.append(trainer._apply_gradient(1 / MICRO_BATCHES))
        weights = gather(trainer.policy, trainer.optimizer).model
        if ranks.is_first:
            (run_dir / f"{sharding}.json").write_text(json.dumps(record))
            whole = {name: tensor.clone() for name, tensor in weights.items()}
            save_file(whole, run_dir / f"{sharding}.safetensors")
    leave_ranks()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
