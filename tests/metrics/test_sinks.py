"""Lines are valid JSON and whole; a failing sink is quiet after its first warning."""

import json
import logging
import math
from pathlib import Path

import numpy as np

from asyncgrpo.metrics.sinks import EventLog, JsonlSink, Sinks


def lines(path: Path) -> list[dict]:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_one_valid_object_per_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"step": 1, "reward": 0.5, "tools/failure_frequency": math.nan})
    assert lines(path) == [{"step": 1, "reward": 0.5, "tools/failure_frequency": None}]
    sink.write({"step": 2, "loss": np.float32(0.25), "grad_norm": math.inf, "n": np.int64(3)})
    assert lines(path)[1] == {"step": 2, "loss": 0.25, "grad_norm": None, "n": 3}


def test_a_new_sink_appends(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        JsonlSink(path).write({"step": step})
    assert [record["step"] for record in lines(path)] == [1, 2]


def test_an_event_has_its_time_and_kind(tmp_path: Path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("sync", policy_version=3, seconds=0.5)
    (event,) = lines(tmp_path / "events.jsonl")
    assert event["time"] > 1.7e9
    assert {k: event[k] for k in ("event", "policy_version", "seconds")} == {
        "event": "sync",
        "policy_version": 3,
        "seconds": 0.5,
    }


def test_a_sink_that_fails_warns_once_and_the_others_go_on(tmp_path: Path, caplog):
    path = tmp_path / "metrics.jsonl"
    sinks = Sinks([JsonlSink(tmp_path / "no such folder" / "metrics.jsonl"), JsonlSink(path)])
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            sinks.write({"step": step})
    sinks.close()
    assert len(caplog.records) == 1
    assert "no such folder" in caplog.text
    assert len(lines(path)) == 3
