"""Conversations with tools, from the fake server's words to samples."""

import json
import logging
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgrpo.channel.messages import DropReason, Published
from asyncgrpo.errors import RunError
from asyncgrpo.metrics.catalog import describe
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout import chat_fakes as fakes
from tests.rollout import user_hooks
from tests.rollout.chat_fakes import call, heard, says
from tests.rollout.fakes import FakeTrainer, run
from tests.rollout.tool_runs import (
    ADD,
    CONTEXT,
    HOOKS,
    TOOLS,
    G,
    recipe,
    replies,
    rolled,
    some_sum,
    started_server,
    window,
    write_sums,
)


@pytest.fixture
def server():
    with started_server() as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_sums(tmp_path / "rows.jsonl")


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
    assert metrics["tools/add/call_count"] == metrics["tools/add/failure_count"] == 0
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


async def test_a_conversation_that_fills_the_context_ends_as_cut_off_and_is_trained(
    server, data_path, caplog
):
    server.state.script = replies(some_sum)  # for ever
    cfg = recipe(server, data_path, failure_budget=0.0)
    with caplog.at_level(logging.INFO):
        trainer = await rolled(server, cfg)
    metrics = window(trainer)
    assert metrics["tools/context_full_frac"] == 1
    assert metrics["completions/clipped_ratio"] == 1
    assert metrics["tools/loop_exhausted_frac"] == 0
    assert "turns and the results of their tools fill the context" in caplog.text
    assert len(trainer.groups) == 6
    assert trainer.drops == []


async def test_megabytes_from_a_tool_end_a_conversation_at_once_and_the_tool_is_named(
    server, data_path, caplog
):
    server.state.script = replies(lambda *_: call("dumps"))
    cfg = recipe(server, data_path, tools=(f"{TOOLS}:dumps",), failure_budget=0.01)
    start = time.process_time()
    with caplog.at_level(logging.INFO):
        metrics = window(await rolled(server, cfg))
    assert time.process_time() - start < 20  # seconds; tokenising one takes a minute
    assert metrics["tools/context_full_frac"] == 1
    assert re.search(
        r"`dumps` returned 28,000,000 characters, and the context has room for 1\d{3} tokens",
        caplog.text,
    )


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
