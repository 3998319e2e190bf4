"""Each side is found where it was put, told with its evidence, and no change is invented."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config import Facts, load_recipe, reload, resolve, write_resolved
from asyncgrpo.diagnose.findings import Diagnosis, diagnose
from asyncgrpo.diagnose.quantities import knobs_of
from asyncgrpo.diagnose.read import History, read_history
from asyncgrpo.diagnose.rules import LIMITS, SIDES, Patch, Side
from asyncgrpo.diagnose.text import patch_yaml, to_json, to_text

STEP_S = 10.0
GROUPS = 8


def history(
    wait_s: float,
    backpressure_s: float,
    metrics: Mapping[str, float] = MappingProxyType({}),
    *,
    windows: int = 30,
) -> History:
    """A run that waits `wait_s` for samples and holds generation back `backpressure_s` a step."""
    steady = {
        "perf/step_s": STEP_S,
        "perf/rollout_wait_s": wait_s,
        "rollout/backpressure_s": backpressure_s / GROUPS,  # per group started
        "batch/groups_per_step": GROUPS,
        "batch/samples_per_step": 64,
        "perf/fwd_s": 2.0,
        "perf/fwd_bwd_s": 5.0,
        "batch/samples_per_row": 12.0,
        **metrics,
    }
    warm_up = steady | {"perf/rollout_wait_s": 90.0, "perf/step_s": 100.0}
    records = [warm_up if window < 2 else steady for window in range(windows)]
    return History(Path("m.jsonl"), tuple(range(1, windows + 1)), tuple(records))


@pytest.mark.parametrize(
    ("wait_s", "backpressure_s", "side"),
    [
        (5.0, 0.0, Side.GENERATION),
        (0.1, 4.0, Side.TRAINER),
        (4.0, 4.0, Side.STALENESS),
        (0.1, 0.1, Side.BALANCED),
    ],
)
def test_the_side_that_waits_gives_the_other_away(wait_s, backpressure_s, side: Side):
    found = diagnose(history(wait_s, backpressure_s))
    assert found.verdict == side
    assert found.confidence == "high"
    assert {e.metric.split(" ")[0] for e in found.evidence} >= {
        "perf/rollout_wait_s",
        "rollout/backpressure_s",
    }


def test_seconds_lost_are_told_per_step_and_for_the_run():
    found = diagnose(history(5.0, 0.0, windows=20))
    assert found.lost_s_per_step == pytest.approx(5.0)  # the warm-up's 90 s do not count
    assert found.lost_s_per_run == pytest.approx(5.0 * 20)


def test_backpressure_counts_the_groups_without_signal_too():
    # a quarter of the groups is trained: four times as many starts, each waiting 0.1 s
    found = diagnose(history(0.0, 0.8, {"frac_reward_zero_std": 0.75}))
    assert found.verdict == Side.TRAINER
    assert found.lost_s_per_step == pytest.approx(3.2)


def test_a_queue_that_disagrees_lowers_the_confidence():
    full = diagnose(history(0.1, 4.0, {"rollout/queue_size": 64 * 4.0}))
    empty = diagnose(history(0.1, 4.0, {"rollout/queue_size": 0.0}))
    assert (full.confidence, empty.confidence) == ("high", "low")
    assert "speaks against it" in to_text(empty)


def changes(found: Diagnosis) -> list[str]:
    return [change.limit for change in found.changes]


def test_generation_held_back_by_the_number_of_rollouts_asks_for_more_of_them():
    limited = {"rollout/concurrency": 512.0, "rollout/vllm_kv_cache_usage_frac": 0.1}
    found = diagnose(history(5.0, 0.0, limited))
    assert changes(found) == ["too few rollouts"]
    assert patch_yaml(found.changes[0]) == "rollout:\n  max_concurrent_rollouts: 1024\n"


def test_generation_held_back_by_the_server_asks_for_more_server():
    busy = {"rollout/concurrency": 60.0, "rollout/vllm_kv_cache_usage_frac": 0.9}
    assert changes(diagnose(history(5.0, 0.0, busy))) == ["server load"]


SLOW_TOOLS = {
    "rollout/duration_s": 10.0,
    "tools/call_frequency": 3.0,
    "tools/latency_s": 2.0,
    "tools/search/latency_s": 1.9,
    "tools/search/call_count": 20.0,
    "tools/compile/latency_s": 3.0,
    "tools/compile/call_count": 2.0,
}


def test_tools_that_take_most_of_a_rollout_are_told_with_the_one_that_takes_most():
    found = diagnose(history(5.0, 0.0, SLOW_TOOLS))
    assert changes(found) == ["tools"]
    assert "the most in `search` (1.9 s a call): make it faster" in found.changes[0].says
    assert found.changes[0].gain_s_per_step == pytest.approx(2.5)


def test_tools_are_no_limit_where_the_servers_take_longer_or_nobody_waits():
    quick = SLOW_TOOLS | {"rollout/duration_s": 13.0}  # 6 s of them in tools
    assert changes(diagnose(history(5.0, 0.0, quick))) == ["server load"]
    assert changes(diagnose(history(0.1, 0.1, SLOW_TOOLS))) == []


def test_slow_tools_at_the_most_rollouts_ask_for_more_of_them_too():
    full = {"rollout/concurrency": 512.0, "rollout/vllm_kv_cache_usage_frac": 0.1}
    found = diagnose(history(5.0, 0.0, SLOW_TOOLS | full))
    assert changes(found) == ["too few rollouts", "tools"]


def test_environments_that_take_most_of_a_rollout_are_told():
    slow = {"rollout/duration_s": 10.0, "env/reset_s": 4.0, "env/reward_s": 1.5}
    found = diagnose(history(5.0, 0.0, slow))
    assert changes(found) == ["environments"]
    assert "reset and get_reward" in found.changes[0].says
    assert changes(diagnose(history(5.0, 0.0, slow | {"env/reward_s": 0.5}))) == ["server load"]


@pytest.mark.parametrize("backpressure_s", [0.0, 4.0])  # generation-bound, staleness-bound
def test_rollouts_generated_for_nothing_come_before_more_of_them(backpressure_s: float):
    one_in_ten = {"frac_reward_zero_std": 0.9}
    found = diagnose(history(4.0, backpressure_s / 10, one_in_ten))
    assert changes(found)[0] == "groups without signal"


def test_a_limit_that_explains_little_does_not_hide_the_others():
    slow = {"rollout/score_wait_s": 0.1, "rollout/duration_s": 0.3}
    assert changes(diagnose(history(5.0, 0.0, slow))) == ["server load", "scoring"]


def test_changes_are_ranked_by_what_they_could_gain():
    slow = {"batch/samples_per_row": 1.1, "perf/fwd_bwd_s": 8.0, "perf/weight_sync_s": 2.5}
    found = diagnose(history(0.1, 4.0, slow))
    gains = [change.gain_s_per_step for change in found.changes]
    assert changes(found) == ["short rows", "recomputation", "weight sync"]
    assert gains == sorted(gains, reverse=True)


def test_a_balanced_run_is_told_to_change_nothing():
    found = diagnose(history(0.1, 0.1))
    assert found.changes == ()
    assert "nothing to change" in to_text(found)


def test_too_few_windows_and_missing_metrics_are_said():
    short = diagnose(history(5.0, 0.0, windows=4))
    assert short.verdict == "unknown"
    assert "log windows: got 4, expected at least 7" in to_text(short)
    bare = History(Path("m"), tuple(range(20)), tuple({"reward": 1.0} for _ in range(20)))
    assert "the metric perf/step_s" in diagnose(bare).missing


def test_steps_that_took_no_time_have_no_bottleneck():
    found = diagnose(history(0.0, 0.0, {"perf/step_s": 0.0}))
    assert found.missing == ("perf/step_s above 0: shares of a step cannot be told",)


def test_json_says_the_same():
    document = json.loads(to_json(diagnose(history(4.0, 4.0))))
    assert document["verdict"] == "staleness-bound"
    assert document["lost_s_per_step"] == pytest.approx(4.0)
    (change,) = document["changes"]
    assert yaml.safe_load(change["patch_yaml"]) == change["patch"]
    assert change["patch"] == {"rollout": {"max_staleness": 8}}


def overrides(patch: Patch) -> list[str]:
    return [
        f"{section}.{key}={json.dumps(value)}"
        for section, leaves in patch.items()
        for key, value in leaves.items()
    ]


RUNS = {
    "cpu, folder": (),
    "cpu, adapter": ("model.peft={r: 8}", "sync.backend=adapter"),
    "kept versions given": ("model.peft={r: 8}", "sync.keep_versions=5"),
    "running servers": ("server.urls=[http://127.0.0.1:8000]",),
    "two GPUs": ("server.devices=[0]", "trainer.devices=[1]"),
}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_every_patch_is_accepted_by_the_runs_own_configuration(limit, settings, tmp_path: Path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {name_or_path: a/b}\ndata: {path: c/d}\n")
    given = ["rollout.rewards=[m:f]", "server.max_model_len=4096", *settings]
    facts = Facts(working_dir=str(tmp_path), server_urls=("http://127.0.0.1:1",), server_port=1)
    config, derived = resolve(load_recipe(recipe, given), facts)
    write_resolved(tmp_path / "config.json", config, derived)
    metrics = {"step": 1, "perf/step_s": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(metrics))

    patch = limit.patch(knobs_of(read_history(tmp_path)))

    changed = resolve(reload(tmp_path, overrides(patch)), facts).config
    for section, leaves in patch.items():
        for key, value in leaves.items():
            assert dict(dict(changed)[section])[key] == value != dict(dict(config)[section])[key]
    assert patch or ":" in limit.says  # words where no key does it


@given(st.floats(0, 20), st.floats(0, 20))
def test_exactly_one_side_holds_whatever_was_measured(wait_s: float, backpressure_s: float):
    quantities = {"wait_share": wait_s, "backpressure_share": backpressure_s}
    holding = [r for r in SIDES if all(c.holds(quantities[c.quantity]) for c in r.when)]
    assert len(holding) == 1


@given(
    st.dictionaries(
        st.sampled_from(
            ["perf/step_s", "perf/rollout_wait_s", "rollout/backpressure_s", "rollout/queue_size"]
        ),
        st.floats(0, 1e6),
    ),
    st.integers(0, 30),
)
def test_any_history_gets_an_answer(values: dict[str, float], windows: int):
    records = tuple(values for _ in range(windows))
    found = diagnose(History(Path("m"), tuple(range(windows)), records))
    assert to_text(found)
    assert json.loads(to_json(found))["verdict"] == found.verdict
