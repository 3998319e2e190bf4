"""The demo's recipe on recorded samples: two sharded ranks draw the loss curve of one."""

from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config import load_recipe
from tests.training.fixtures import resolved, write_run
from tests.training.recorded_sums import GROUPS_PER_STEP, MODEL, ROOT, K, group_of, record
from tests.training.scripted_worker import ScriptedWorker
from tests.training.test_trainer import metrics, train

STEPS = 20
GROUPS = STEPS * GROUPS_PER_STEP  # rows that are full leave at once
DEMO = load_recipe(ROOT / "recipes" / "demo.yaml").config
FROM_THE_RECIPE = ("learning_rate", "lr_scheduler_type", "warmup_steps", "adam_beta2")


def curve(run_dir: Path, num_ranks: int, trainer: dict[str, Any]) -> list[dict[str, float]]:
    """Twenty steps of two full rows each: side by side on two ranks, in turn on one."""
    recipe = {leaf: getattr(DEMO.trainer, leaf) for leaf in FROM_THE_RECIPE}
    budget = record(GROUPS).row_tokens
    config = resolved(
        MODEL,
        run_dir,
        model={"gradient_checkpointing": DEMO.model.gradient_checkpointing},
        rollout={"num_generations": DEMO.rollout.num_generations, "max_staleness": STEPS},
        server={"max_model_len": DEMO.server.max_model_len},
        loss={"num_sampler_logprobs": K, "normalization": "step"},
        trainer=recipe
        | {"max_steps": STEPS, "token_budget": budget, "nproc_per_node": num_ranks}
        | trainer,
        checkpoint={"save_steps": STEPS},
    )
    write_run(run_dir, config)
    with ScriptedWorker(run_dir, GROUPS, script=lambda at: group_of(at % GROUPS, GROUPS)):
        train(run_dir, num_ranks)
    return metrics(run_dir)


@pytest.mark.timeout(1800)
def test_two_sharded_ranks_draw_the_loss_curve_of_one(tmp_path: Path):
    alone = curve(tmp_path / "alone", 1, {"gradient_accumulation_steps": 2})
    both = curve(tmp_path / "both", 2, {"sharding": "fsdp2"})
    assert [window["step"] for window in both] == [*range(1, STEPS + 1)]
    for windows, micro_batches in ((alone, 2), (both, 1)):
        for window in windows:
            assert window["batch/groups_per_step"] == GROUPS_PER_STEP
            assert window["batch/microbatches_per_step"] == micro_batches
    for name, limit in (("loss", 1e-4), ("grad_norm", 1e-4), ("entropy", 1e-4)):
        apart = max(abs(a[name] - b[name]) for a, b in zip(alone, both, strict=True))
        spread = max(w[name] for w in alone) - min(w[name] for w in alone)
        print(f"{name}: at most {apart:.2e} apart, on a curve that spans {spread:.3g}")
        assert apart < limit < spread, name
    steps = [(a["step"], a["learning_rate"]) for a in alone]
    assert [rate for _, rate in steps] == pytest.approx([b["learning_rate"] for b in both])
