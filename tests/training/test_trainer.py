"""The real trainer process, a scripted worker, and a publisher that only counts: no server."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from asyncgrpo.channel.messages import DropReason, GroupReady, PromptDropped, ToTrainer
from asyncgrpo.channel.sockets import request_stop
from asyncgrpo.records import Sample, SampleKey
from tests import warm
from tests.training.fixtures import make_model, resolved, write_run
from tests.training.scripted_worker import VOCAB, K, ScriptedWorker, make_group, no_signal

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.training.trainer_without_server"

IN_EVERY_WINDOW = {
    *("loss", "grad_norm", "learning_rate", "num_tokens", "entropy"),
    *("clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max"),
    *("sampling/importance_sampling_ratio/mean", "sampling/sampling_logp_difference/mean"),
    *("sampling/sampler_mass", "sampling/masked_mean", "sampling/kl_k3", "sampling/ess_frac"),
    *("sample/staleness_mean", "sample/staleness_max", "sample/forwarded_tokens_mean"),
    *("batch/forwarded_tokens_per_step", "batch/trained_tokens_per_step"),
    *("batch/samples_per_step", "batch/groups_per_step", "batch/microbatches_per_step"),
    *("batch/masked_token_frac", "batch/samples_per_row", "batch/row_tokens_mean"),
    *("batch/row_fill_frac", "batch/row_imbalance", "batch/packing_ratio", "batch/pad_frac"),
    *("perf/step_s", "perf/fwd_bwd_s", "perf/fwd_s", "perf/optimizer_s", "perf/rollout_wait_s"),
    *("perf/weight_sync_s", "perf/weight_sync_barrier_s", "perf/fwd_bwd_forwarded_tokens_per_s"),
    *("perf/wall_clock_forwarded_tokens_per_s", "perf/wall_clock_trained_tokens_per_s"),
    *("rollout/queue_size", "ledger/trained_count", "ledger/dropped_count"),
    *("sample/dropped_stale_count", "batch/dropped_oversize_count", "skipped_step_count"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def start(run_dir: Path, **environment: str) -> subprocess.Popen[str]:
    return warm.ours().start(PROGRAM, str(run_dir), env=environment, stderr=subprocess.PIPE)


def torchrun(run_dir: Path, num_ranks: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(num_ranks)]
    return subprocess.Popen(
        [*command, "-m", PROGRAM, str(run_dir)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def train(run_dir: Path, num_ranks: int = 1) -> str:
    """Run to the end; what was written to stderr."""
    if num_ranks > 1:
        return warm.run_ranks(num_ranks, PROGRAM, str(run_dir))
    return finish(start(run_dir))


def finish(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return errors


def metrics(run_dir: Path) -> list[dict[str, float]]:
    """The records of a run; of one under way, those that are written to their end."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def state(folder: Path) -> dict:
    return json.loads((folder / "rollout_state.json").read_text())


def drop_every_fifth(ordinal: int) -> ToTrainer | None:
    return no_signal(ordinal, 40) if ordinal % 5 == 4 else None


def test_a_run_of_two_ranks_ends_when_its_epochs_do(model: Path, tmp_path: Path):
    trainer = {"max_steps": -1, "num_train_epochs": 1.5, "nproc_per_node": 2}
    trainer |= {"sharding": "fsdp2", "gradient_accumulation_steps": 2}
    config = resolved(model, tmp_path, trainer=trainer, tracking={"logging_steps": 2})
    write_run(tmp_path, config)
    with ScriptedWorker(tmp_path, num_prompts=40, script=drop_every_fifth) as worker:
        train(tmp_path, num_ranks=2)
        assert worker.stopped
    assert worker.sent == list(range(60))
    final = state(tmp_path)
    assert (final["epoch"], final["prompt_index"], final["partial"]) == (1, 20, {})
    assert final["dropped"] == {"no_signal": 12}
    windows = metrics(tmp_path)
    steps = [0, *(int(window["step"]) for window in windows)]
    assert steps[1] == 2
    assert steps[-1] == final["step"]
    num_steps = [after - before for before, after in pairwise(steps)]
    trained = [
        window["batch/samples_per_step"] * n for window, n in zip(windows, num_steps, strict=True)
    ]
    assert sum(trained) == 4 * 48
    assert sum(window["ledger/dropped_count"] for window in windows) == 12
    assert windows[0]["batch/microbatches_per_step"] == 2
    newest = max((tmp_path / "checkpoints").iterdir())
    assert state(newest) == final


def test_the_steps_of_a_log_window_that_is_not_full_are_in_the_metrics(model: Path, tmp_path: Path):
    trainer, tracking = {"max_steps": 5}, {"logging_steps": 3}
    write_run(tmp_path, resolved(model, tmp_path, trainer=trainer, tracking=tracking))
    with ScriptedWorker(tmp_path, num_prompts=50):
        train(tmp_path)
    windows = metrics(tmp_path)
    assert [window["step"] for window in windows] == [3, 5]
    assert all(window["loss"] for window in windows)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (DropReason.NO_SIGNAL, "9 of them got the same reward for every rollout"),
        (DropReason.UNSCORED, "9 of them were not scored: every function"),
        (DropReason.ALL_MASKED, "9 of them have no token to train, though their rewards"),
        (DropReason.TOO_LONG, "9 of them do not fit into server.max_model_len"),
        (DropReason.ERROR, "9 of them failed in a reward"),
    ],
)
def test_a_run_that_trained_nothing_fails_with_the_commonest_reason(
    model: Path, tmp_path: Path, reason: DropReason, told: str
):
    def dropped(ordinal: int) -> ToTrainer:
        return PromptDropped(0, ordinal, DropReason.FILTERED if ordinal % 4 == 0 else reason)

    trainer = {"max_steps": -1, "num_train_epochs": 1}
    write_run(tmp_path, resolved(model, tmp_path, trainer=trainer))
    with ScriptedWorker(tmp_path, num_prompts=12, script=dropped):
        process = start(tmp_path)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"no step was taken: all 12 prompts were dropped; {told}" in errors
    assert "Traceback" not in errors


def equal_group(ordinal: int, num_prompts: int) -> GroupReady:
    """Two samples of 16 tokens that share nothing: rows fill up alike on one rank and on two."""
    epoch, position = divmod(ordinal, num_prompts)
    samples: list[Sample] = []
    for index in range(2):
        draw = np.random.default_rng([ordinal, index])
        ids = draw.integers(3, VOCAB, 16).astype(np.int32)
        ids[0] = 3 + (2 * ordinal + index) % 60
        trained = (np.arange(16) >= 6).astype(np.uint8)
        logprobs = np.where(trained, -np.log(VOCAB), 0).astype(np.float32)
        top_ids = np.where(trained[:, None], np.arange(K) + 3, -1).astype(np.int32)
        top_logprobs = np.where(trained[:, None], -np.log(VOCAB), -np.inf).astype(np.float32)
        top_logprobs = np.repeat(top_logprobs, K, axis=1)
        key, advantage = SampleKey(epoch, position, index), float(draw.normal())
        samples.append(Sample(key, ids, trained, logprobs, advantage, 0, top_ids, top_logprobs))
    return GroupReady(epoch, position, position, tuple(samples))


def run_of(
    run_dir: Path, model: Path, num_ranks: int, trainer: dict[str, Any]
) -> list[dict[str, float]]:
    leaves = {"nproc_per_node": num_ranks, "token_budget": 64 // num_ranks} | trainer
    config = resolved(
        model, run_dir, trainer=leaves, server={"max_model_len": 32}, rollout={"max_staleness": 50}
    )
    write_run(run_dir, config)
    with ScriptedWorker(run_dir, num_prompts=30, script=lambda at: equal_group(at, 30)):
        train(run_dir, num_ranks)
    return metrics(run_dir)


def test_two_sharded_ranks_learn_as_one_and_one_goes_on_from_their_checkpoint(
    model: Path, tmp_path: Path
):
    alone = run_of(tmp_path / "alone", model, 1, {"max_steps": 5})
    run_dir = tmp_path / "ranks"
    run_of(run_dir, model, 2, {"max_steps": 3, "sharding": "fsdp2"})
    both = run_of(run_dir, model, 1, {"max_steps": 5})
    assert [window["step"] for window in both] == [1, 2, 3, 4, 5]
    assert [window["batch/samples_per_step"] for window in both] == [4] * 5
    assert [window["batch/samples_per_row"] for window in both] == [2, 2, 2, 4, 4]
    for name in ("loss", "grad_norm", "entropy", "sampling/ess_frac", "sampling/masked_mean"):
        got, expected = [w[name] for w in both], [w[name] for w in alone]
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5), name
    assert both[0]["perf/weight_sync_barrier_s"] > 0


def test_a_killed_trainer_resumes_at_the_right_prompt(model: Path, tmp_path: Path):
    trainer = {"max_steps": -1, "num_train_epochs": 1.0}
    config = resolved(model, tmp_path, trainer=trainer, rollout={"max_staleness": 50})
    write_run(tmp_path, config)
    with ScriptedWorker(tmp_path, num_prompts=30, script=None):
        killed = start(tmp_path, KILL_AT_VERSION="5")
        killed.communicate(timeout=600)
    assert killed.returncode == -9
    before = state(tmp_path)
    assert before["step"] == 4
    assert 0 < before["prompt_index"] < 30

    with ScriptedWorker(tmp_path, num_prompts=30) as worker:
        train(tmp_path)
    begin = worker.begins[0]
    assert begin.first_ordinal == before["prompt_index"]
    assert [list(span) for span in begin.resolved] == before["resolved"]
    assert begin.end_ordinal == 30
    final = state(tmp_path)
    assert (final["epoch"], final["prompt_index"], final["dropped"]) == (1, 0, {})
    # Relative to the weights, each of the 120 samples was trained once.
    windows = metrics(tmp_path)
    restored = next(i for i, window in enumerate(windows) if window["step"] == 4)
    resumed = max(i for i, window in enumerate(windows) if window["step"] == 5)
    counted = windows[: restored + 1] + windows[resumed:]
    assert sum(window["batch/samples_per_step"] for window in counted) == 120

    errors = train(tmp_path)
    assert "reached its end" in errors
    assert state(tmp_path) == final


def test_a_stop_request_checkpoints_and_exits_0(model: Path, tmp_path: Path):
    config = resolved(
        model, tmp_path, trainer={"max_steps": 100_000}, checkpoint={"save_steps": 100_000}
    )
    write_run(tmp_path, config)
    with ScriptedWorker(tmp_path, num_prompts=50) as worker:
        process = start(tmp_path)
        wait_for_step(tmp_path, process, 3)
        request_stop(tmp_path)
        finish(process)
        assert worker.stopped
    final = state(tmp_path)
    assert final["step"] == metrics(tmp_path)[-1]["step"]
    assert state(tmp_path / "checkpoints" / f"step-{final['step']:06d}") == final
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    counts = next(event for event in events if event["event"] == "ledger")
    assert counts["step"] == final["step"]
    assert counts["dropped"] == sum(counts["reasons"].values()) == sum(final["dropped"].values())
    this_epoch = sum(end - start for start, end in final["resolved"])
    assert counts["trained"] + counts["dropped"] == 50 * final["epoch"] + this_epoch > 0


def wait_for_step(run_dir: Path, process: subprocess.Popen[str], step: int) -> None:
    deadline = time.monotonic() + 600
    while not (run_dir / "metrics.jsonl").exists() or len(metrics(run_dir)) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def write_long_run_of_two_ranks(run_dir: Path, model: Path) -> None:
    leaves = {"max_steps": 100_000, "nproc_per_node": 2, "sharding": "fsdp2"}
    write_run(run_dir, resolved(model, run_dir, trainer=leaves, rollout={"max_staleness": 50}))


def test_a_killed_rank_ends_the_run_at_once_with_a_message(model: Path, tmp_path: Path):
    write_long_run_of_two_ranks(tmp_path, model)
    with ScriptedWorker(tmp_path, num_prompts=50):
        process = torchrun(tmp_path, 2)
        wait_for_step(tmp_path, process, 2)
        ranks = sorted(psutil.Process(process.pid).children(), key=lambda rank: rank.pid)
        ranks[1].kill()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "a rank of the trainer is gone" in errors or "lost rank" in errors


def test_ranks_asked_to_end_finish_their_step_together(model: Path, tmp_path: Path):
    write_long_run_of_two_ranks(tmp_path, model)
    with (
        ScriptedWorker(tmp_path, num_prompts=50),
        warm.ranks(2, PROGRAM, str(tmp_path)) as ranks,
    ):
        wait_for_step(tmp_path, ranks.processes[0], 2)
        for rank in ranks.processes:
            rank.terminate()  # both end after the first has heard
        ranks.finish()
    final = state(tmp_path)
    assert state(tmp_path / "checkpoints" / f"step-{final['step']:06d}") == final


def test_a_window_has_every_metric_and_sigterm_is_a_stop_request(model: Path, tmp_path: Path):
    config = resolved(model, tmp_path, trainer={"max_steps": 100_000})
    write_run(tmp_path, config)
    with ScriptedWorker(tmp_path, num_prompts=50):
        process = start(tmp_path)
        wait_for_step(tmp_path, process, 2)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        process.terminate()
        assert "most recent call first" in finish(process)  # stacks, for a crash bundle
    for window in metrics(tmp_path):
        assert window.keys() >= IN_EVERY_WINDOW | {"step", "time", "policy_version", "epoch"}
    tokens = [window["num_tokens"] for window in metrics(tmp_path)]
    assert tokens == sorted(tokens)


def overflowing_at_first(ordinal: int) -> ToTrainer | None:
    """Advantages that float16 gradients cannot hold, for more steps than may be skipped."""
    if ordinal >= 20:
        return None
    group = make_group(0, ordinal)
    samples = (msgspec.structs.replace(s, advantage=1e6 * s.advantage) for s in group.samples)
    return msgspec.structs.replace(group, samples=tuple(samples))


def test_a_float16_run_finds_its_loss_scale_and_goes_on(model: Path, tmp_path: Path):
    leaves = {"fp16": True, "max_steps": 14}
    write_run(tmp_path, resolved(model, tmp_path, trainer=leaves, rollout={"max_staleness": 50}))
    with ScriptedWorker(tmp_path, num_prompts=100, script=overflowing_at_first):
        errors = train(tmp_path)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    skipped = [event for event in events if event["event"] == "step_skipped"]
    assert len(skipped) > 3
    halved = [65536 / 2 ** (n + 1) for n in range(len(skipped))]
    assert [event["loss_scale"] for event in skipped] == halved
    assert "gradients overflowed at loss scale 65536, which falls to 32768" in errors
    windows = metrics(tmp_path)
    assert sum(window.get("skipped_step_count", 0) for window in windows) == len(skipped)
    assert all(window["grad_norm"] > 0 for window in windows[len(skipped) :])
    assert state(tmp_path)["step"] == 14


def test_steps_that_are_not_finite_end_the_run_with_a_message(model: Path, tmp_path: Path):
    leaves = {"learning_rate": 1e30, "max_steps": 20}
    write_run(tmp_path, resolved(model, tmp_path, trainer=leaves))
    with ScriptedWorker(tmp_path, num_prompts=50):
        process = start(tmp_path)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "not finite in 3 steps in a row, up to step 4: lower trainer.learning_rate" in errors
    assert "Traceback" not in errors
    assert len(metrics(tmp_path)) <= 4


def test_a_model_that_is_missing_is_told_in_one_message(model: Path, tmp_path: Path):
    config = resolved(model, tmp_path, model={"name_or_path": str(tmp_path / "missing")})
    write_run(tmp_path, config)
    process = start(tmp_path)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "model.name_or_path" in errors
    assert "Traceback" not in errors
