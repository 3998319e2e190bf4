"""Policies that learn to use tools and to play, in whole runs with the real vLLM on CPU.

Both recipes start from one model, so one server serves them, one after the other.
"""

import statistics
from pathlib import Path

import pytest

from asyncgrpo.config import Facts, load_recipe, resolve
from tests.end_to_end.runs import RunDirectory, run
from tests.server.vllm_process import running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

RECIPES = Path(__file__).parents[2] / "recipes"
MARGIN = 0.3  # from about 0.45 to 0.9 and more within the recipe's steps, and sooner by this much
STEPS = {"tools": 11, "counter": 20}  # of 16 and 24
SAME_MODEL = 1e-3  # |mean ratio - 1| of the first step, whose samples have staleness 0

TOOLS = ("call_frequency", "failure_frequency", "latency_s", "parallel_calls_mean")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    longest = load_recipe(RECIPES / "counter.yaml", ["server.devices=[]"])
    facts = Facts(recipe_name="tools", working_dir=str(RECIPES))
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with running_vllm(resolve(longest, facts).config, log, {}) as url:
        yield url


@pytest.fixture(scope="module", params=STEPS)
def trained(request, url, tmp_path_factory) -> tuple[str, list[dict]]:
    """A recipe's first steps; gives its name and its metrics."""
    path = tmp_path_factory.mktemp(request.param) / "run"
    overrides = (f"run.dir={path}", f"server.urls=[{url}]")
    steps = f"trainer.max_steps={STEPS[request.param]}"
    run("train", str(RECIPES / f"{request.param}.yaml"), *overrides, steps)
    return request.param, RunDirectory(path).metrics


def test_the_reward_rises(trained):
    _, metrics = trained
    rewards = [record["reward"] for record in metrics if "reward" in record]
    assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:2]) + MARGIN


def test_a_conversation_is_one_sample_of_the_model_that_generated_it(trained):
    _, metrics = trained
    for record in metrics:
        assert record.get("rollout/fork_frac", 0) == 0
        assert record.get("rollout/samples_per_rollout", 1) == 1
    assert abs(metrics[0]["sampling/importance_sampling_ratio/mean"] - 1) < SAME_MODEL
    assert metrics[0]["sampling/sampling_logp_difference/mean"] < SAME_MODEL


def test_calls_are_counted(trained):
    name, metrics = trained
    tools = ("add", "multiply") if name == "tools" else ("increment",)
    first = metrics[0]
    for metric in TOOLS:
        assert f"tools/{metric}" in first
    for tool in tools:
        assert first[f"tools/{tool}/call_count"] > 0
        assert first[f"tools/{tool}/latency_s"] >= 0
    assert first["rollout/turns_mean"] > 1.5


def test_the_environment_is_timed_and_named(trained):
    name, metrics = trained
    times = {key for record in metrics for key in record if key.startswith("env/")}
    assert times == (set() if name == "tools" else {"env/reset_s", "env/reward_s"})
    named = {key for record in metrics for key in record if key.startswith("rewards/Counter/")}
    assert bool(named) == (name == "counter")
