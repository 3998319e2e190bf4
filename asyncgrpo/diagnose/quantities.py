"""The numbers that rules compare: means over the run, shares of a step, settings.

A share is a sum over a sum, so a long step counts for as much time as it took.
"""

import math
import re
from collections.abc import Mapping

from asyncgrpo.diagnose.read import History
from asyncgrpo.diagnose.rules import Knobs

WARM_UP_FRAC = 0.1
MIN_WARM_UP = 2
MOST_WITHOUT_SIGNAL = 0.95  # beyond it the number of groups started cannot be estimated

TOOL_LATENCY = re.compile(r"tools/(.+)/latency_s$")

RATIOS = {  # name -> metric over metric
    "wait_share": ("perf/rollout_wait_s", "perf/step_s"),
    "sync_share": ("perf/weight_sync_s", "perf/step_s"),
    "score_wait_share": ("rollout/score_wait_s", "rollout/duration_s"),
    "queue_steps": ("rollout/queue_size", "batch/samples_per_step"),
    "backward_ratio": ("perf/fwd_bwd_s", "perf/fwd_s"),
}
MADE_OF = {name: f"{over} / {under}" for name, (over, under) in RATIOS.items()} | {
    "backpressure_s_per_step": "rollout/backpressure_s x groups started per step",
    "backpressure_share": "rollout/backpressure_s x groups started per step / perf/step_s",
    "queue_fill": "rollout/queue_size / (batch/samples_per_step x rollout.max_staleness)",
    "tools_share": "tools/latency_s x tools/call_frequency / rollout/duration_s",
    "environments_share": "(env/reset_s + env/reward_s) / rollout/duration_s",
    "concurrency_at_limit": "rollout/concurrency / rollout.max_concurrent_rollouts",
    "gradient_checkpointing": "model.gradient_checkpointing",
}


def warm_up(windows: int) -> int:
    """Number of windows at the start that do not count."""
    return max(MIN_WARM_UP, math.ceil(WARM_UP_FRAC * windows))


def means_of(history: History) -> dict[str, float]:
    """Mean of each metric over the windows that have it."""
    names = sorted({name for record in history.records for name in record})
    means = {name: history.mean(name) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def quantities_of(history: History) -> dict[str, float]:
    """The metrics' means, and the quantities of `MADE_OF` computed from them."""
    means, knobs = means_of(history), knobs_of(history)
    quantities = dict(means)
    for name, (over, under) in RATIOS.items():
        if over in means and means.get(under, 0.0) > 0:
            quantities[name] = means[over] / means[under]
    if means.get("perf/step_s", 0.0) > 0 and "rollout/backpressure_s" in means:
        backpressure = _backpressure_per_step(means)
        quantities["backpressure_s_per_step"] = backpressure
        quantities["backpressure_share"] = backpressure / means["perf/step_s"]
    if "queue_steps" in quantities:
        quantities["queue_fill"] = quantities["queue_steps"] / max(knobs.max_staleness, 1)
    if "rollout/concurrency" in means:
        limit = knobs.max_concurrent_rollouts
        quantities["concurrency_at_limit"] = means["rollout/concurrency"] / limit
    quantities |= _shares_outside_the_servers(means)
    quantities["gradient_checkpointing"] = float(knobs.gradient_checkpointing)
    return quantities


def slowest_tool(means: Mapping[str, float]) -> str:
    """The tool that takes most of the rollouts' time, in words."""
    latencies = {found[1]: means[name] for name in means if (found := TOOL_LATENCY.match(name))}
    if not latencies:
        return "one of them"
    name = max(latencies, key=lambda n: latencies[n] * means.get(f"tools/{n}/call_count", 1.0))
    return f"`{name}` ({latencies[name]:.3g} s a call)"


def _shares_outside_the_servers(means: Mapping[str, float]) -> dict[str, float]:
    """Parts of a rollout's time in which no server works for it."""
    duration_s = means.get("rollout/duration_s", 0.0)
    if duration_s <= 0:
        return {}
    in_tools = means.get("tools/latency_s", 0.0) * means.get("tools/call_frequency", 0.0)
    in_environment = means.get("env/reset_s", 0.0) + means.get("env/reward_s", 0.0)
    return {
        "tools_share": in_tools / duration_s,
        "environments_share": in_environment / duration_s,
    }


def _backpressure_per_step(means: Mapping[str, float]) -> float:
    """Seconds of each step that generation is held back.

    The metric is a mean over groups, which start one after the other: their waits add up. Groups
    without signal are started too, but no step counts them.
    """
    trained = means.get("batch/groups_per_step")
    if trained is None:
        return min(means["rollout/backpressure_s"], means["perf/step_s"])
    without_signal = min(means.get("frac_reward_zero_std", 0.0), MOST_WITHOUT_SIGNAL)
    started = trained / (1.0 - without_signal)
    return min(means["rollout/backpressure_s"] * started, means["perf/step_s"])


def knobs_of(history: History) -> Knobs:
    """The run's settings; the defaults where there is no configuration beside the metrics."""
    config = history.config
    if config is None:
        return Knobs()
    return Knobs(
        max_staleness=config.rollout.max_staleness,
        max_concurrent_rollouts=config.rollout.max_concurrent_rollouts,
        token_budget=config.trainer.token_budget,
        keep_versions=config.sync.keep_versions if config.sync.backend == "adapter" else None,
        gradient_checkpointing=config.model.gradient_checkpointing,
        weight_sync_steps=config.sync.weight_sync_steps,
    )
