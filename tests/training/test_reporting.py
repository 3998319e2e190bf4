"""A step in the log window."""

import json
from pathlib import Path

import pytest

from asyncgrpo.channel.messages import DropReason
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.metrics.sinks import JsonlSink, Sinks
from asyncgrpo.packing.cost import path_cost
from asyncgrpo.packing.planner import PlannedRow
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.intake.batches import Batch
from asyncgrpo.training.model.flops import RowFlops, Utilization
from asyncgrpo.training.reporting import Reporter, StepReport
from tests.training.scripted_worker import make_sample

FLOPS = Utilization(RowFlops(per_token=5.0, per_key={None: 2.0}, per_position=3.0), 1000.0)


def a_batch(index: int) -> Batch:
    sample = make_sample(0, 0, index)
    n = sample.num_tokens
    planned = PlannedRow((sample,), n, sample.num_trained, path_cost(0, n))
    return Batch((planned,), (build_row([sample]),))


def report(batch: Batch, fwd_bwd_s: float) -> StepReport:
    return StepReport(
        batches=(batch,),
        token_budget=64,
        loss=0.5,
        grad_norm=1.0,
        learning_rate=1e-3,
        seconds={"fwd_bwd": fwd_bwd_s},
        rollout_wait_s=0.0,
        step_s=2 * fwd_bwd_s,
        num_tokens=100,
    )


def window(folder: Path, utilization: Utilization | None) -> dict[str, float]:
    reporter = Reporter(
        folder, Sinks([JsonlSink(folder / "metrics.jsonl")]), Ledger(1).counts, utilization
    )
    for index, seconds in enumerate((1.0, 3.0)):
        reporter.record_step(report(a_batch(index), seconds))
    reporter.write_window([], step=2, policy_version=2, epoch=0.5)
    return json.loads((folder / "metrics.jsonl").read_text())


def test_mfu_is_the_windows_flops_over_what_the_hardware_could_do(tmp_path: Path):
    flops = 0.0
    for index in range(2):
        sample = make_sample(0, 0, index)
        n, trained = sample.num_tokens, sample.num_trained
        flops += 5 * n + 2 * n * (n + 1) / 2 + 3 * trained
    found = window(tmp_path, FLOPS)
    assert found["perf/fwd_bwd_mfu"] == pytest.approx(flops / (4.0 * 1000))
    assert found["perf/wall_clock_mfu"] == pytest.approx(flops / (8.0 * 1000))


def test_prompts_left_out_for_their_length_are_counted(tmp_path: Path):
    ledger = Ledger(4)
    reporter = Reporter(tmp_path, Sinks([JsonlSink(tmp_path / "m.jsonl")]), ledger.counts, None)
    ledger.drop_prompt(0, 0, DropReason.TOO_LONG)
    ledger.drop_prompt(0, 1, DropReason.TOO_LONG)
    ledger.drop_prompt(0, 2, DropReason.ERROR)
    reporter.record_ledger(ledger.counts)
    reporter.record_ledger(ledger.counts)  # counted once
    reporter.write_window([], step=1, policy_version=1, epoch=0.5)
    found = json.loads((tmp_path / "m.jsonl").read_text())
    assert found["ledger/dropped_count"] == 3
    assert found["ledger/dropped_too_long_count"] == 2


def test_groups_without_a_trained_token_are_counted(tmp_path: Path):
    ledger = Ledger(4)
    reporter = Reporter(tmp_path, Sinks([JsonlSink(tmp_path / "m.jsonl")]), ledger.counts, None)
    ledger.drop_prompt(0, 0, DropReason.ALL_MASKED)
    reporter.record_ledger(ledger.counts)
    reporter.write_window([], step=1, policy_version=1, epoch=0.5)
    found = json.loads((tmp_path / "m.jsonl").read_text())
    assert found["ledger/dropped_all_masked_count"] == 1


def test_a_count_of_what_did_not_happen_is_0_and_one_of_what_did_is_its_sum(tmp_path: Path):
    reporter = Reporter(tmp_path, Sinks([JsonlSink(tmp_path / "m.jsonl")]), Ledger(1).counts, None)
    reporter.record_skip(1, 0.0, float("inf"), None)
    for step in (1, 2):
        reporter.write_window([], step=step, policy_version=0, epoch=0.0)
    first, second = map(json.loads, (tmp_path / "m.jsonl").read_text().splitlines())
    assert first["skipped_step_count"] == 1
    for name in (
        *("skipped_step_count", "sample/dropped_stale_count", "sample/dropped_error_count"),
        *("batch/dropped_oversize_count", "sync/coalesced_count", "rollout/vllm_retry_count"),
    ):
        assert second[name] == 0


def test_without_known_hardware_the_other_metrics_are_there_and_mfu_is_not(tmp_path: Path):
    found = window(tmp_path, None)
    assert not [name for name in found if name.endswith("mfu")]
    assert found["perf/step_s"] == 4.0


def test_a_token_that_samples_share_is_masked_or_trained_once(tmp_path: Path):
    samples = tuple(make_sample(0, 0, 0) for _ in range(4))  # 4 answers, word for word the same
    row = build_row(samples)
    n = samples[0].num_tokens
    trained = samples[0].num_trained
    planned = PlannedRow(samples, n, 4 * trained, path_cost(0, n))
    reporter = Reporter(tmp_path, Sinks([JsonlSink(tmp_path / "metrics.jsonl")]), Ledger(1).counts)
    reporter.record_step(report(Batch((planned,), (row,)), 1.0))
    reporter.write_window([], step=1, policy_version=1, epoch=0.5)
    found = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert found["batch/masked_token_frac"] == pytest.approx(1 - trained / n)
    assert 0 < found["batch/masked_token_frac"] < 1
    assert found["batch/trained_tokens_per_step"] == 4 * trained
