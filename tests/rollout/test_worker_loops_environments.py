"""Runs with environments, and what is refused of tools and environments before the start."""

import re

import pytest

from asyncgrpo.channel.messages import DropReason, GroupReady
from asyncgrpo.errors import ConfigError, DataError, HookError, RunError
from asyncgrpo.metrics.catalog import describe
from asyncgrpo.rollout.data.prompts import Prompts, load_prompts
from asyncgrpo.rollout.inputs import Inputs
from tests.rollout import chat_fakes as fakes
from tests.rollout import environment_classes as classes
from tests.rollout import user_hooks
from tests.rollout.chat_fakes import call, heard, says
from tests.rollout.fakes import config
from tests.rollout.tool_runs import (
    ADD,
    ANY,
    ENVIRONMENTS,
    HOOKS,
    TOOLS,
    G,
    recipe,
    replies,
    rolled,
    started_server,
    window,
    write_rows,
    write_sums,
)


@pytest.fixture
def server():
    with started_server() as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_sums(tmp_path / "rows.jsonl")


def counting(prompt_ids, seed):
    """Increments by 1 or 2 until the count is 3 or 4."""
    text = heard(prompt_ids)
    counts = [int(part.partition("<")[0]) for part in text.split("<tool_response>")[1:]]
    if counts and counts[-1] >= 3:
        return says("Done.")
    return says(call("increment", step=1 + (seed >> 20) % 2))


@pytest.fixture
def targets(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "Count to 3."}], "target": 3, "colour": "red"}
    ] * 6
    return write_rows(tmp_path / "targets.jsonl", rows)


def with_environment(server, data_path, name, rewards=(), **rollout):
    given = {k: f"{ENVIRONMENTS}:{v}" for k, v in name.items()} if isinstance(name, dict) else None
    rollout = {"environments": given or f"{ENVIRONMENTS}:{name}", "tools": ()} | rollout
    return recipe(server, data_path, rewards, **rollout)


@pytest.mark.parametrize("name", ["Counter", "AsyncCounter"])
async def test_an_environment_judges_what_its_tools_were_used_for(server, targets, name):
    server.state.script = counting
    trainer = await rolled(server, with_environment(server, targets, name))
    metrics = window(trainer)
    assert trainer.groups
    assert 0 < metrics["reward"] < 1
    assert metrics[f"rewards/{name}/mean"] == metrics["reward"]
    assert metrics["tools/increment/call_count"] >= 2 * 6 * G
    assert 0 <= metrics["env/reset_s"] < 1
    assert 0 <= metrics["env/reward_s"] < 1
    for group in trainer.groups:
        for sample in group.samples:
            steps = map(int, re.findall(r'"step": (\d)', heard(sample.input_ids)))
            assert (sample.advantage > 0) == (sum(steps) == 3)
    assert [n for n in metrics if describe(n) is None] == []


async def test_rewards_of_the_recipe_and_of_the_environment_are_added(server, targets):
    server.state.script = counting
    ones = f"{HOOKS}:always_one"
    metrics = window(await rolled(server, with_environment(server, targets, "Counter", [ones])))
    assert metrics["reward"] == pytest.approx(1 + metrics["rewards/Counter/mean"])


async def test_without_a_dataset_reset_makes_the_prompts_one_for_each_group(server):
    server.state.script = replies("Done.")
    cfg = with_environment(server, None, "Self")
    cfg = cfg.model_copy(
        update={"data": cfg.data.model_copy(update={"path": None, "system_prompt": "Be brief."})}
    )
    trainer = await rolled(server, cfg, stop_after=5, prompts=5)
    assert len(trainer.groups) >= 5
    asked = set()
    for group in trainer.groups:
        (prompt,) = {heard(sample.input_ids[sample.trained == 0]) for sample in group.samples}
        assert "Be brief.<|im_end|>\n<|im_start|>user\nWhat is " in prompt
        asked.add(prompt)
    assert len(asked) > 1


async def test_what_reset_says_follows_the_datasets_prompt_and_reaches_rewards(server, data_path):
    server.state.script = replies("Done.")
    user_hooks.KEPT.clear()
    cfg = with_environment(server, data_path, "Talker", [f"{HOOKS}:keeps_prompts"])
    trainer = await rolled(server, cfg)
    shown = {heard(sample.input_ids) for group in trainer.groups for sample in group.samples}
    assert all("+ 1? Go!<|im_end|>" in text for text in shown)
    assert {prompt[-1]["content"] for prompt in user_hooks.KEPT} == {
        f"What is {i} + 1? Go!" for i in range(6)
    }


async def test_each_row_meets_the_environment_it_names_and_only_its_tools(server, tmp_path):
    server.state.script = lambda prompt_ids, seed: (
        counting(prompt_ids, seed) if "increment" in heard(prompt_ids) else says(f"Hi {seed}.")
    )
    rows = [{"environment": "talk", "target": 0}, {"environment": "count", "target": 3}] * 3
    prompts = [{"prompt": [{"role": "user", "content": row["environment"]}]} for row in rows]
    data_path = write_rows(
        tmp_path / "mixed.jsonl", [row | p for row, p in zip(rows, prompts, strict=True)]
    )
    kinds = {"talk": "Talker", "count": "Counter"}
    rewards = [f"{HOOKS}:random_reward"]
    trainer = await rolled(server, with_environment(server, data_path, kinds, rewards))
    assert len(trainer.groups) == 6
    for group in trainer.groups:
        for sample in group.samples:
            text = heard(sample.input_ids)
            talks = "user\ntalk Go!" in text
            assert ('"speak"' in text, '"increment"' in text) == (talks, not talks)


async def test_a_reset_that_fails_costs_its_own_rollouts(server, data_path):
    server.state.script = counting
    cfg = with_environment(server, data_path, "ResetFailsOnOddTargets", [ANY], failure_budget=1.0)
    trainer = await rolled(server, cfg)
    assert [drop.reason for drop in trainer.drops] == [DropReason.ERROR] * 3
    assert len(trainer.groups) == 3


async def test_a_reset_that_waits_holds_up_its_own_rollouts_only(server, data_path):
    """Odd targets wait for the other groups; were they in the way, none would end."""
    server.state.script = counting
    name = "ResetWaitsOnOddTargets"
    cfg = with_environment(server, data_path, name, [ANY], environment_timeout_s=100.0)
    # In order, so that the first group, which runs alone, is one that does not wait.
    cfg = cfg.model_copy(update={"data": cfg.data.model_copy(update={"shuffle": False})})
    classes.may_go_on.clear()
    ready: list[int] = []

    def note(message):
        if isinstance(message, GroupReady):
            ready.append(message.row_index)
            if len(ready) == 3:
                classes.may_go_on.set()
        return ()

    trainer = await rolled(server, cfg, consume=note)
    assert sorted(ready[:3]) == [0, 2, 4]
    assert trainer.drops == []
    assert len(ready) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ResetFails", "environment `ResetFails`: reset raised ConnectionError"),
        ("RewardFails", "environment `RewardFails`: get_reward raised KeyError"),
        ("ConstructorFails", "environment `ConstructorFails`: its constructor raised OSError"),
    ],
)
async def test_an_environment_that_always_fails_ends_the_run_and_is_named(
    server, data_path, name, message
):
    server.state.script = replies("Done.")
    cfg = with_environment(server, data_path, name, [ANY], failure_budget=0.01)
    with pytest.raises(RunError, match=message):
        await rolled(server, cfg)


async def test_instances_are_no_more_than_rollouts_at_once(server, targets):
    server.state.script = counting
    classes.MADE.clear()
    cfg = with_environment(server, targets, "Counter", max_concurrent_rollouts=5)
    await rolled(server, cfg)
    assert len(classes.MADE) <= 5
    assert sum(made.episodes for made in classes.MADE) == 6 * G


# Before the start


def check(cfg, template=fakes.KEEPS):
    prompts = load_prompts(cfg.data, environment_prompts=cfg.rollout.environments is not None)
    return Inputs(cfg, fakes.tokenizer(template), prompts)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"tools": (f"{TOOLS}:without_hint",)}, HookError, "parameter `a` has no type hint"),
        ({"environments": f"{ENVIRONMENTS}:NoReset"}, HookError, "has no `reset"),
        (
            {"environments": f"{ENVIRONMENTS}:HasAdd"},
            HookError,
            r"`HasAdd.add` has the name of a tool in rollout.tools",
        ),
        (
            {"environments": f"{ENVIRONMENTS}:Plain", "rewards": ()},
            ConfigError,
            r"nothing scores the rollouts.* or give the environment a `get_reward`",
        ),
        (
            {"environments": {"a": f"{ENVIRONMENTS}:Plain"}},
            DataError,
            "row 0: column `environment` holds None; rollout.environments has a",
        ),
        (
            {"environments": f"{ENVIRONMENTS}:Counter", "rewards": (f"{HOOKS}:Counter",)},
            ConfigError,
            "`Counter` has the name of an environment",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(data_path, fields, error, message):
    rollout = {"tools": (ADD,), "rewards": (ANY,)} | fields
    with pytest.raises(error, match=message):
        check(config(data_path, "http://x", (), rollout=rollout))


def test_a_template_that_breaks_the_rule_is_refused_before_the_start(data_path):
    cfg = config(data_path, "http://x", (ANY,), rollout={"tools": (ADD,)})
    check(cfg)
    with pytest.raises(DataError, match="it rewrites what it rendered before"):
        check(cfg, fakes.FORGETS)
    check(config(data_path, "http://x", (ANY,)), fakes.FORGETS)  # without tools it does no harm


def test_rows_need_no_prompt_where_an_environment_makes_it(tmp_path):
    data_path = write_rows(tmp_path / "rows.jsonl", [{"target": 3}])
    cfg = config(data_path, "http://x", (ANY,))
    with pytest.raises(DataError, match="has no column `prompt`"):
        check(cfg)
    cfg = config(data_path, "http://x", (), rollout={"environments": f"{ENVIRONMENTS}:Counter"})
    prompts = check(cfg).prompts
    assert isinstance(prompts, Prompts)
    assert prompts[0].messages == []
