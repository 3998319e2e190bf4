"""A user's loops and rewards, in a run and refused before the start."""

import re
from pathlib import Path

import numpy as np
import pytest

from asyncgrpo.channel.messages import (
    DropReason,
)
from asyncgrpo.errors import ConfigError, HookError, RunError
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout.fakes import (
    FakeTrainer,
    config,
    consume_at_once,
    mean,
    run,
    tokenizer,
    write_prompts,
)

HOOKS = "tests.rollout.user_hooks"
THREES = f"{HOOKS}:number_of_threes"
PROBES = 1  # requests of the worker's own, to find the endpoint
G = 4


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def data_path(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", 10)


async def test_the_curriculum_of_the_documentation_runs_unchanged(server, data_path):
    rollout = {"loop": f"{HOOKS}:CurriculumRolloutLoop", "loop_args": {"pass_rate_cap": 0.9}}
    cfg = config(data_path, server.url, [f"{HOOKS}:first_token"], rollout=rollout)
    # An allowance of one token: a group starts when the one before it is scored and consumed.
    trainer = FakeTrainer(num_prompts=30, allowance_tokens=1, consume=consume_at_once(1))
    with pytest.raises(RunError, match="epoch 1: none of the 10 prompts"):
        await run(server, cfg, trainer)
    # Every rollout has a positive reward, so the second epoch has nothing left to learn.
    assert {drop.reason for drop in trainer.drops if drop.epoch == 1} == {DropReason.FILTERED}
    assert len([group for group in trainer.groups if group.epoch == 0]) > 1


async def test_the_page_s_curriculum_runs_as_written(server, data_path, tmp_path):
    page = (Path(__file__).parents[2] / "docs/loops.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "loops.py").write_text(source)
    args = {"pass_rate_cap": 0.9, "brief_tokens": 8, "bonus": 0.5}
    rollout = {"loop": f"{tmp_path / 'loops.py'}:Curriculum", "loop_args": args}
    cfg = config(data_path, server.url, [f"{HOOKS}:first_token"], rollout=rollout)
    trainer = FakeTrainer(num_prompts=30, allowance_tokens=1, consume=consume_at_once(1))
    with pytest.raises(RunError, match="epoch 1: none of the 10 prompts"):
        await run(server, cfg, trainer)
    assert {drop.reason for drop in trainer.drops if drop.epoch == 1} == {DropReason.FILTERED}
    # Every answer is brief: the bonus of `generate_one` is in every total.
    total, judged = (mean(trainer, name) for name in ("reward", "rewards/first_token/mean"))
    assert total == pytest.approx(judged + 0.5)


async def test_an_epoch_that_is_rejected_whole_is_an_error(server, data_path):
    cfg = config(data_path, server.url, [THREES], rollout={"loop": f"{HOOKS}:RejectsEverything"})
    with pytest.raises(RunError, match="rejected by filter_prompt"):
        await run(server, cfg, FakeTrainer(num_prompts=30))


async def test_a_loop_of_two_turns_makes_one_sample_that_trains_both(server, data_path):
    cfg = config(data_path, server.url, [], rollout={"loop": f"{HOOKS}:TwoTurns"})
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    seeds = [seed for _, seed in server.state.requests[PROBES:]]
    assert len(set(seeds)) == 10 * G * 2
    assert mean(trainer, "rollout/turns_mean") == 2
    assert mean(trainer, "rollout/fork_frac") == 0
    for group in trainer.groups:
        for sample in group.samples:
            starts = np.flatnonzero(np.diff(sample.trained.astype(int)) == 1)
            assert len(starts) == 2


async def test_a_reward_without_keywords_gets_only_what_it_names(server, data_path):
    cfg = config(data_path, server.url, [f"{HOOKS}:no_keywords"])
    trainer = await run(server, cfg, FakeTrainer(num_prompts=10))
    assert trainer.groups


def inputs(cfg, template="default"):
    made = tokenizer() if template == "default" else tokenizer(template)
    return Inputs(cfg, made, load_prompts(cfg.data))


def test_a_run_without_rewards_is_refused(data_path):
    with pytest.raises(ConfigError, match=r"rollout.rewards is empty"):
        inputs(config(data_path, "http://x", []))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"{HOOKS}:needs_ground_truth", r"needs `ground_truth`.*\(`target`\)"),
        (f"{HOOKS}:NOT_A_FUNCTION", "is 3; expected a function"),
        (f"{HOOKS}:missing", "has no `missing`"),
        ("no_such_package.module:reward", "no module `no_such_package`"),
        ("just_a_name", "expected `package.module:name`"),
        ("/nowhere/file.py:reward", "no file `/nowhere/file.py`"),
    ],
)
def test_a_reward_that_cannot_work_is_refused_before_the_start(data_path, source, message):
    with pytest.raises(HookError, match=message):
        inputs(config(data_path, "http://x", [source]))
