"""Whatever holds metrics is read: run directories, JSON lines, CSV, older spellings."""

import json
from pathlib import Path

import pytest

from asyncgrpo.diagnose.read import History, read_history, rename
from asyncgrpo.errors import DataError


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def values(history: History, name: str) -> list[float]:
    return [record[name] for record in history.records if name in record]


def test_a_run_directory_is_read_by_its_metrics(tmp_path: Path):
    write(tmp_path / "metrics.jsonl", {"step": 1, "reward": 0.5}, {"step": 2, "reward": None})
    history = read_history(tmp_path)
    assert history.steps == (1, 2)
    assert values(history, "reward") == [0.5]  # null is no observation


def test_steps_that_were_trained_again_after_a_resume_count_once(tmp_path: Path):
    steps = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.7), (4, 0.4)]
    file = write(tmp_path / "m.jsonl", *[{"step": s, "reward": r} for s, r in steps])
    history = read_history(file)
    assert history.steps == (1, 2, 4)  # step 3 belongs to what was lost
    assert values(history, "reward") == [0.1, 0.7, 0.4]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path):
    file = write(tmp_path / "m.jsonl", {"step": 1, "reward": 0.5})
    file.write_text(file.read_text() + '{"step": 2, "rew')
    assert read_history(file).steps == (1,)


def test_a_broken_line_in_the_middle_is_told_by_number(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(DataError, match=r"m\.jsonl:2: not a JSON object"):
        read_history(file)


def test_a_csv_export_is_read_with_empty_cells_and_a_prefix(tmp_path: Path):
    file = tmp_path / "export.csv"
    file.write_text("step,train/reward,perf/step_s\n1,0.5,2.0\n2,,NaN\n3,0.7,4.0\n")
    history = read_history(file)
    assert values(history, "reward") == [0.5, 0.7]
    assert values(history, "perf/step_s") == [2.0, 4.0]


@pytest.mark.parametrize(
    ("older", "name"),
    [
        ("rollout/inflight", "rollout/concurrency"),
        ("rollout/generated_tok_s", "rollout/generated_tokens_per_s"),
        ("sample/rollout_queue_size", "rollout/queue_size"),
        ("sample/dropped_stale_total", "sample/dropped_stale_count"),
        ("ratio", "sampling/importance_sampling_ratio/mean"),
        ("ratio/max", "sampling/importance_sampling_ratio/max"),
        ("train/perf/step_s", "perf/step_s"),
        ("perf/step_s", "perf/step_s"),
    ],
)
def test_older_spellings_mean_todays_metrics(older: str, name: str):
    assert rename(older) == name


def test_a_running_total_becomes_what_each_window_added(tmp_path: Path):
    name = "sample/dropped_stale_total"
    file = write(tmp_path / "m.jsonl", *[{"step": i, name: t} for i, t in enumerate([2, 2, 5])])
    assert values(read_history(file), "sample/dropped_stale_count") == [2, 0, 3]


def test_a_total_that_falls_was_a_windows_own(tmp_path: Path):
    name = "sample/dropped_stale_total"
    file = write(tmp_path / "m.jsonl", *[{"step": i, name: t} for i, t in enumerate([2, 0, 5])])
    assert values(read_history(file), "sample/dropped_stale_count") == [2, 0, 5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "no such file"),
        ("notes.txt", "x", "expected .jsonl or .csv"),
        ("m.jsonl", "", "no row has a step"),
        ("m.csv", "a,b\n1,2\n", "no row has a step"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content, message: str):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_history(tmp_path / name)


def test_a_directory_without_metrics_is_said(tmp_path: Path):
    with pytest.raises(DataError, match=r"no metrics\.jsonl"):
        read_history(tmp_path)
