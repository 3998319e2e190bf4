"""A run's progress from its records, and how it is told."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from asyncgrpo.launch.view.panel import PanelView, bottleneck, render, sparkline
from asyncgrpo.launch.view.progress import Goal, RunProgress, Tail, advance, reward_way
from asyncgrpo.launch.view.view import LineView


def record(step: int, **values) -> dict:
    return {"step": step, "time": float(step), "policy_version": step, "epoch": 0.1, **values}


def test_a_step_and_a_sync_are_a_line_each_in_the_order_of_time():
    events = [
        {"time": 1.5, "event": "policy_published", "version": 2, "publish_s": 0.25},
        {"time": 0.5, "event": "process_started", "name": "worker"},
    ]
    metrics = [record(1, reward=0.5), record(2, reward=0.75)]
    progress = advance(RunProgress(Goal(max_steps=10)), metrics, events)
    assert progress.news == (
        "step 1/10  reward 0.500",
        "sync 2  served after 0.25 s",
        "step 2/10  reward 0.750",
    )
    assert (progress.step, progress.policy_version, progress.rewards) == (2, 2, (0.5, 0.75))
    assert advance(progress, [], []).news == ()


def test_what_a_window_did_not_measure_is_not_told():
    nulls = {"reward": None, "grad_norm": None, "perf/step_s": 1.0}
    progress = advance(RunProgress(Goal()), [record(1, **nulls)], [])
    assert progress.news == ("step 1  took 1.0 s",)
    assert progress.rewards == ()


@pytest.mark.parametrize(
    ("goal", "fraction"),
    [(Goal(max_steps=8), 0.5), (Goal(num_epochs=2.0), 0.25), (Goal(), None)],
)
def test_the_goal_is_steps_or_epochs(goal: Goal, fraction: float | None):
    assert goal.fraction(step=4, epoch=0.5) == fraction


def test_a_long_run_keeps_its_rewards_and_only_the_newest_windows():
    progress = advance(RunProgress(Goal()), [record(step, reward=0.5) for step in range(300)], [])
    assert len(progress.rewards) == 300
    assert [r["step"] for r in progress.records] == list(range(200, 300))


def test_the_rewards_way_is_told_by_its_ends():
    assert "0.200 -> 0.900" in reward_way([0.2] * 5 + [0.5] * 10 + [0.9] * 5)
    assert "0.000 -> 1.000" in reward_way([0.0, 1.0])
    assert "no reward" in reward_way([])


def test_a_tail_reads_whole_lines_once(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    with path.open("a") as file:
        file.write('{"step": 1}\n{"step"')
        file.flush()
        assert tail.read() == [{"step": 1}]
        file.write(": 2}\nnot json\n")
        file.flush()
        assert tail.read() == [{"step": 2}]
    assert tail.read() == []
    assert Tail(path, from_end=True).read() == []


@given(st.lists(st.integers(0, 100), max_size=20), st.data())
def test_a_tail_gives_every_record_however_it_was_written(tmp_path_factory, steps, data):
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    content = "".join(json.dumps({"step": step}) + "\n" for step in steps).encode()
    tail, read = Tail(path), []
    with path.open("ab", buffering=0) as file:
        while content:
            size = data.draw(st.integers(1, len(content)))
            file.write(content[:size])
            content = content[size:]
            read += tail.read()
    assert [r["step"] for r in read] == steps


def test_text_mode_is_one_line_each_and_waiting_does_not_flood():
    output = io.StringIO()
    view = LineView(output)
    for half_seconds in range(50):
        doing = f"Loading shard {half_seconds}" if half_seconds else ""
        view.waiting("server-0 starts", half_seconds / 2, doing)
    view.show(advance(RunProgress(Goal(max_steps=2)), [record(1, reward=0.5)], []))
    view.close()
    assert output.getvalue().splitlines() == [
        "server-0 starts, 0 s: Loading shard 1",
        "server-0 starts, 10 s: Loading shard 21",
        "server-0 starts, 20 s: Loading shard 41",
        "step 1/2  reward 0.500",
    ]


def steps(count: int, **values) -> list[dict]:
    return [record(step, reward=step / count, **values) for step in range(1, count + 1)]


def test_the_panel_shows_progress_reward_staleness_rates_queue_and_bottleneck():
    waiting = {
        "perf/step_s": 10.0,
        "perf/rollout_wait_s": 5.0,
        "rollout/backpressure_s": 0.0,
        "sample/staleness_mean": 1.25,
        "rollout/generated_tokens_per_s": 512.0,
        "rollout/queue_size": 31.0,
    }
    progress = advance(RunProgress(Goal(max_steps=20)), steps(10, **waiting), [])
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    console.print(render("demo", progress, bottleneck(progress), elapsed_s=75))
    text = screen.getvalue()
    for shown in (
        "demo",
        "10/20",
        "50 %",
        "0.100 -> 0.800",
        "1.25 versions",
        "512 tokens/s",
        "31 samples",
        "generation-bound: the trainer waits for samples",
        "Ctrl-C",
        "1 min 15 s",
    ):
        assert shown in text, shown


def test_a_panel_keeps_what_was_said_and_goes_away():
    output = io.StringIO()
    view = PanelView("demo", Console(file=output, force_terminal=True, width=60))
    view.say("run directory runs/demo")
    view.waiting("server-0 starts", 3, "Loading weights")
    view.show(
        advance(RunProgress(Goal()), steps(3), [{"event": "warning", "message": "slow disk"}])
    )
    view.close()
    view.close()
    assert "run directory runs/demo" in output.getvalue()
    assert "warning: slow disk" in output.getvalue()


def test_too_few_steps_name_no_bottleneck():
    assert bottleneck(advance(RunProgress(Goal()), steps(2), [])) == "too early to say"


@given(st.lists(st.floats(-10, 10), max_size=50))
def test_a_sparkline_has_a_bar_for_each_of_the_last_values(values):
    assert len(sparkline(values)) == min(len(values), 30)
