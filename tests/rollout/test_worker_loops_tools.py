"""Conversations with tools and environments, from the fake server's words to samples."""

import json
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgrpo.channel.messages import DropReason, GroupReady, Published
from asyncgrpo.errors import ConfigError, DataError, HookError, RunError
from asyncgrpo.metrics.catalog import describe
from asyncgrpo.metrics.window import reduce_window
from asyncgrpo.rollout.data.prompts import Prompts, load_prompts
from asyncgrpo.rollout.inputs import Inputs
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout import chat_fakes as fakes
from tests.rollout import environment_classes as classes
from tests.rollout import user_hooks
from tests.rollout.chat_fakes import call, heard, says
from tests.rollout.fakes import FakeTrainer, config, run

HOOKS = "tests.rollout.user_hooks"
TOOLS = "tests.rollout.tool_functions"
ENVIRONMENTS = "tests.rollout.environment_classes"
ADD, MULTIPLY = f"{TOOLS}:add", f"{TOOLS}:multiply"
ANY = f"{HOOKS}:random_reward"
G = 4
CONTEXT = 2048


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=320, max_model_len=CONTEXT)) as fake:
        yield fake


def write_rows(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture
def data_path(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + 1?"}], "target": i}
        for i in range(6)
    ]
    return write_rows(tmp_path / "rows.jsonl", rows)


def recipe(server, data_path, rewards=(ANY,), **rollout):
    rollout = {"max_completion_length": 200, "tools": (ADD, MULTIPLY)} | rollout
    sections = {"rollout": rollout, "server": {"max_model_len": CONTEXT}}
    return config(data_path, server.url, rewards, **sections)


def replies(*texts):
    """A policy with these replies, one per turn."""

    def script(prompt_ids, seed):
        turn = heard(prompt_ids).count("<|im_start|>assistant") - 1
        text = texts[min(max(turn, 0), len(texts) - 1)]
        return says(text if isinstance(text, str) else text(prompt_ids, seed))

    return script


def some_sum(prompt_ids, seed):
    return call("add", a=seed % 7, b=1)


async def rolled(server, cfg, *, prompts=6, template=fakes.KEEPS, **trainer):
    made = FakeTrainer(num_prompts=prompts, **trainer)
    return await run(server, cfg, made, speaker=fakes.tokenizer(template))


def window(trainer):
    return reduce_window(trainer.metrics)


# Conversations


async def test_a_conversation_with_a_tool_is_one_sample_that_trains_both_replies(server, data_path):
    server.state.script = replies(some_sum, "It is so.")
    trainer = await rolled(server, recipe(server, data_path))
    samples = [sample for group in trainer.groups for sample in group.samples]
    assert samples
    for sample in samples:
        starts = np.flatnonzero(np.diff(sample.trained.astype(int)) == 1) + 1
        ends = np.flatnonzero(np.diff(np.append(sample.trained, 0).astype(int)) == -1) + 1
        first, second = (sample.input_ids[a:b] for a, b in zip(starts, ends, strict=True))
        made = json.loads(heard(first).removeprefix("<tool_call>").partition("</tool_call>")[0])
        assert heard(second) == "It is so.<|im_end|>"
        between = heard(sample.input_ids[ends[0] : starts[1]])
        result = made["arguments"]["a"] + 1
        assert f"<tool_response>{result}</tool_response>" in between
        assert '"name": "multiply"' in heard(sample.input_ids[: starts[0]])  # tools are shown
    metrics = window(trainer)
    assert metrics["rollout/turns_mean"] == 2
    assert metrics["rollout/fork_frac"] == metrics["rollout/drift_tokens_max"] == 0
    assert metrics["rollout/samples_per_rollout"] == 1


async def test_metrics_of_tools_by_hand(server, data_path):
    two = call("add", a=1, b=1) + call("multiply", a=2, b="x" * 3)
    bad = call("subtract") + "<tool_call>{</tool_call>" + call("add", a=1)
    server.state.script = replies(lambda *_: two, lambda *_: bad, "Done.")
    trainer = await rolled(server, recipe(server, data_path))
    metrics = window(trainer)
    rollouts = 6 * G
    assert metrics["tools/call_frequency"] == 5
    assert metrics["tools/add/call_count"] == 2 * rollouts
    assert metrics["tools/add/failure_count"] == rollouts  # an argument is missing
    assert metrics["tools/multiply/call_count"] == rollouts
    assert metrics["tools/multiply/failure_count"] == 0  # "xxx" * 2 works in Python
    assert metrics["tools/unknown_name_count"] == rollouts
    assert metrics["tools/malformed_count"] == rollouts
    assert metrics["tools/failure_frequency"] == pytest.approx(3 / 5)
    assert metrics["tools/parallel_calls_mean"] == pytest.approx((2 + 3) / 2)
    assert metrics["tools/loop_exhausted_frac"] == 0
    assert 0 <= metrics["tools/add/latency_s"] < 1
    assert 0 <= metrics["tools/latency_s"] < 1
    assert [name for name in metrics if describe(name) is None] == []
    assert "env/reset_s" not in metrics


async def test_without_a_call_the_failure_frequency_is_nan(server, data_path):
    server.state.script = replies("No tool.")
    metrics = window(await rolled(server, recipe(server, data_path)))
    assert metrics["tools/call_frequency"] == 0
    assert np.isnan(metrics["tools/failure_frequency"])
    assert "tools/latency_s" not in metrics


async def test_without_tools_there_are_no_metrics_of_tools(server, data_path):
    server.state.script = replies("No tool.")
    trainer = await rolled(server, recipe(server, data_path, tools=()))
    assert not [name for name in trainer.metrics if name.startswith("tools/")]


@pytest.mark.parametrize("limit", [1, 3])
async def test_turns_that_call_tools_are_limited(server, data_path, limit):
    server.state.script = replies(some_sum)  # for ever
    cfg = recipe(server, data_path, max_tool_calling_iterations=limit)
    metrics = window(await rolled(server, cfg))
    assert metrics["rollout/turns_max"] == metrics["rollout/turns_mean"] == limit + 1
    assert metrics["tools/call_frequency"] == limit
    assert metrics["tools/loop_exhausted_frac"] == 1


async def test_a_conversation_that_fills_the_context_costs_its_rollout_and_says_so(
    server, data_path
):
    server.state.script = replies(some_sum)  # for ever
    cfg = recipe(server, data_path, failure_budget=0.05)
    with pytest.raises(RunError, match="turns and the results of their tools fill it"):
        await rolled(server, cfg)
    assert server.state.generated_tokens > 0


async def test_megabytes_from_a_tool_cost_their_rollout_at_once_and_the_tool_is_named(
    server, data_path
):
    server.state.script = replies(lambda *_: call("dumps"))
    cfg = recipe(server, data_path, tools=(f"{TOOLS}:dumps",), failure_budget=0.01)
    start = time.process_time()
    with pytest.raises(
        RunError,
        match=r"`dumps` returned 28,000,000 characters, and the context has room for 1\d{3} tokens",
    ):
        await rolled(server, cfg)
    assert time.process_time() - start < 20  # seconds; tokenising one takes a minute


async def test_what_rewards_see_of_a_conversation(server, data_path):
    server.state.script = replies(lambda *_: "Adding. " + call("add", a=1, b=2), "It is 3.")
    user_hooks.KEPT.clear()
    await rolled(server, recipe(server, data_path, [f"{HOOKS}:keeps_completions"]))
    (completion, completion_ids), *_ = user_hooks.KEPT
    assert completion == [
        {
            "role": "assistant",
            "content": "Adding.",
            "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
            ],
        },
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    said = "Adding. " + call("add", a=1, b=2)
    assert completion_ids == [*says(said), *says("It is 3.")]


async def test_requests_of_a_conversation_have_seeds_of_their_own_and_the_run_repeats(data_path):
    runs = []
    for _ in range(2):
        with FakeServer(FakeState(vocab_size=320, max_model_len=CONTEXT)) as server:
            server.state.script = replies(some_sum, some_sum, "Done.")
            await rolled(server, recipe(server, data_path))
            runs.append(sorted(seed for _, seed in server.state.requests[1:]))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 6 * G * 3


async def test_a_conversation_keeps_its_policy_name(server, data_path):
    state = server.state
    state.adapters = {"policy-v000000": "/", "policy-v000001": "/"}
    state.versions = {"policy-v000000": 0, "policy-v000001": 1}
    asked: list[tuple[str, str]] = []  # of each request: policy name, what the rollout said first

    def script(prompt_ids, seed):
        name = state.requests[-1][0]
        text = heard(prompt_ids)
        if seed == 0:
            return says("a probe of the worker's own")
        if "<tool_response>" not in text:
            said = call("add", a=seed, b=1)
            asked.append((name, said))
            return says(said)
        asked.append((name, text.partition("<|im_start|>assistant\n")[2].partition("<|im_")[0]))
        return says("Done.")

    def publish(message):
        return (Published("policy-v000001", 1),) if len(state.requests) > 10 else ()

    state.script = script
    state.latency_s = 0.05
    cfg = recipe(server, data_path, max_concurrent_rollouts=4)
    cfg = cfg.model_copy(update={"sync": cfg.sync.model_copy(update={"backend": "adapter"})})
    trainer = FakeTrainer(num_prompts=6, policy="policy-v000000", consume=publish)
    await run(server, cfg, trainer, speaker=fakes.tokenizer())
    assert {name for name, _ in asked} == {"policy-v000000", "policy-v000001"}
    assert len(asked) == 2 * 6 * G
    assert len(set(asked)) == 6 * G  # the two turns of a rollout asked for one name


async def test_a_conversation_that_is_rewritten_forks_and_trains_every_token_once(
    server, data_path
):
    said = "How odd. " + call("add", a=1, b=2)
    server.state.script = replies(lambda *_: said, "It is 3.")
    cfg = recipe(server, data_path)
    trainer = await rolled(server, cfg, template=fakes.FORGETS_WHAT_IS_ODD)
    metrics = window(trainer)
    assert metrics["rollout/fork_frac"] == 1
    assert metrics["rollout/samples_per_rollout"] == 2
    first, second = trainer.groups[0].samples[:2]
    trained = [heard(s.input_ids[s.trained == 1]) for s in (first, second)]
    assert trained == [f"{said}<|im_end|>", "It is 3.<|im_end|>"]
    assert "<|im_start|>assistant\nnothing<|im_end|>" in heard(second.input_ids)
    assert first.advantage == second.advantage
    held = len(says(said))  # the reply, all of which was rendered again
    assert metrics["rollout/drift_tokens_max"] == metrics["rollout/drift_tokens_mean"] == held


async def test_the_page_s_loop_that_asks_twice_runs_as_written(server, data_path, tmp_path):
    page = (Path(__file__).parents[2] / "docs/tools-and-environments.md").read_text()
    (source,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "AsksTwice" in block
    ]
    (tmp_path / "loops.py").write_text(source)
    server.state.script = replies(some_sum, "It is so.", "Yes, I am.")
    cfg = recipe(server, data_path, loop=f"{tmp_path / 'loops.py'}:AsksTwice")
    trainer = await rolled(server, cfg)
    assert len(trainer.groups) == 6
    metrics = window(trainer)
    assert metrics["rollout/turns_mean"] == 3
    assert metrics["tools/call_frequency"] == 1
    text = heard(trainer.groups[0].samples[-1].input_ids)
    assert text.endswith("Are you sure?<|im_end|>\n<|im_start|>assistant\nYes, I am.<|im_end|>")


async def test_qwen3s_template_gives_one_sample_per_conversation(server, data_path):
    server.state.script = replies(some_sum, some_sum, "Done.")
    trainer = await rolled(server, recipe(server, data_path), template=fakes.QWEN3)
    metrics = window(trainer)
    assert metrics["rollout/samples_per_rollout"] == 1
    assert metrics["rollout/fork_frac"] == 0


async def test_a_tool_that_never_returns_costs_its_own_rollouts_only(server, data_path):
    def script(prompt_ids, seed):
        text = heard(prompt_ids)
        first = "<tool_response>" not in text
        return says(
            (call("hangs") if "What is 3 " in text else some_sum(0, seed)) if first else "!"
        )

    server.state.script = script
    cfg = recipe(
        server, data_path, tools=(ADD, f"{TOOLS}:hangs"), tool_timeout_s=3.0, failure_budget=1.0
    )
    trainer = await rolled(server, cfg)
    assert [drop.reason for drop in trainer.drops] == [DropReason.ERROR]
    assert len(trainer.groups) == 5
    metrics = window(trainer)
    assert metrics["tools/hangs/failure_count"] == G
    assert metrics["tools/hangs/latency_s"] >= 3.0


async def test_tools_that_hang_use_up_the_budget_and_are_named(server, data_path):
    server.state.script = replies(lambda *_: call("hangs"))
    cfg = recipe(
        server, data_path, tools=(f"{TOOLS}:hangs",), tool_timeout_s=0.1, failure_budget=0.01
    )
    with pytest.raises(RunError, match=r"`hangs` took longer than rollout\.tool_timeout_s = 0\.1"):
        await rolled(server, cfg)


# Environments


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


# Laws


words = st.sampled_from(["It", " is", " so", "\n", "<think>", "</think>", "{", "é", "<tool_call>"])
said = st.one_of(
    st.lists(words, max_size=4).map("".join),
    st.builds(lambda a, before: before + call("add", a=a, b=1), st.integers(0, 99), words),
    st.just(call("subtract")),
)


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(said, min_size=1, max_size=5), cut=st.integers(0, 5), odd=st.booleans())
async def test_whatever_is_said_every_generated_token_is_trained_once(
    server, data_path, script, cut, odd
):
    made = 0

    def answer(prompt_ids, seed):
        nonlocal made
        turn = heard(prompt_ids).count("<|im_start|>assistant") - 1
        if turn < 0:
            return says("a probe of the worker's own")
        output_ids = says(script[turn] if turn < len(script) else "End.")
        if odd:  # another tokenisation of the same text
            rng = random.Random(seed)
            output_ids = [t for token in output_ids for t in spelled(token, rng)]
        if turn == 1:
            output_ids = output_ids[: max(1, len(output_ids) - cut)]
        made += len(output_ids)
        return output_ids

    server.state.script = answer
    trainer = await rolled(server, recipe(server, data_path, max_completion_length=900), prompts=1)
    assert {drop.reason for drop in trainer.drops} == set()
    (group,) = trainer.groups
    assert sum(int(sample.trained.sum()) for sample in group.samples) == made
    assert len(group.samples) == G
    assert window(trainer)["rollout/samples_per_rollout"] == 1


def spelled(token, rng):
    text = heard([token])
    if rng.random() < 0.5 or len(text) < 2 or text.startswith("<|"):
        return [token]
    return [t for letter in text for t in fakes.ids(letter)]
