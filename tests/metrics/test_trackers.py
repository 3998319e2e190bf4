"""Trackers get what metrics.jsonl gets, and never raise."""

import logging
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncgrpo.config import Config
from asyncgrpo.metrics import trackers
from asyncgrpo.metrics.trackers import open_sinks


def configuration(*report_to: str) -> Config:
    return Config.model_validate(
        {"model": {"name_or_path": "org/model"}, "tracking": {"report_to": list(report_to)}}
    )


def test_tensorboard_shows_each_metric_at_its_step(tmp_path: Path):
    sinks = open_sinks(configuration("tensorboard"), tmp_path)
    for step, reward in ((1, 0.25), (2, 0.75)):
        sinks.write({"step": step, "time": 100.0 + step, "reward": reward, "loss": math.nan})
    sinks.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert shown.Tags()["scalars"] == ["reward"]  # NaN is no point of a curve
    assert [(e.step, e.value) for e in shown.Scalars("reward")] == [(1, 0.25), (2, 0.75)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_without_a_tracker_there_is_the_file_alone(tmp_path: Path):
    open_sinks(configuration(), tmp_path).write({"step": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


class Broken:
    def __init__(self, run_dir: Path) -> None:
        pass

    def write(self, record) -> None:
        raise RuntimeError("the cloud is gone")

    def close(self) -> None:
        raise RuntimeError("the cloud is still gone")


def missing(run_dir: Path) -> Broken:
    raise ModuleNotFoundError("No module named 'tensorboard'")


@pytest.mark.parametrize(
    ("make", "told"),
    [(Broken, "the cloud is gone"), (missing, "pip install asyncgrpo[tensorboard]")],
)
def test_a_tracker_that_fails_is_told_once_and_left_out(
    tmp_path: Path, monkeypatch, caplog, make, told: str
):
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", make)
    with caplog.at_level(logging.WARNING):
        sinks = open_sinks(configuration("tensorboard"), tmp_path)
        for step in range(3):
            sinks.write({"step": step})
        sinks.close()
    assert len(caplog.records) == 1
    assert told in caplog.text
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
