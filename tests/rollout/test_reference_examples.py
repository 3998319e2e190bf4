"""Classes and functions of the reference's shapes run in the worker, unchanged but for imports."""

import re

import numpy as np
import pytest

from asyncgrpo import Sample
from asyncgrpo.channel.messages import DropReason
from asyncgrpo.errors import RunError
from tests.rollout import reference_examples as examples
from tests.rollout.chat_fakes import call, heard, says
from tests.rollout.fakes import FakeTrainer, config, consume_at_once, run, write_prompts
from tests.rollout.tool_runs import (
    G,
    recipe,
    replies,
    rolled,
    started_server,
    window,
    write_rows,
)

HERE = "tests.rollout.reference_examples"


@pytest.fixture
def server():
    with started_server() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _forget():
    examples.SEEN.clear()


def with_environment(server, data_path, given, rewards=()):
    cfg = recipe(server, data_path, rewards, environments=given, tools=())
    if data_path is None:
        cfg = cfg.model_copy(update={"data": cfg.data.model_copy(update={"path": None})})
    return cfg


def adds_one_or_two(prompt_ids, seed):
    counts = heard(prompt_ids).split("<tool_response>")[1:]
    return says("Done." if counts else call("increment", step=1 + (seed >> 20) % 2))


async def test_a_curriculum_stops_sampling_what_is_solved(server, tmp_path):
    path = write_prompts(tmp_path / "prompts.jsonl", 6)
    rollout = {"loop": f"{HERE}:StopsAtSolved", "loop_args": {"solved_enough": 0.9}}
    cfg = config(path, server.url, [f"{HERE}:long_answers"], rollout=rollout)
    # An allowance of one token: a group starts when the one before it is scored and consumed.
    trainer = FakeTrainer(num_prompts=18, allowance_tokens=1, consume=consume_at_once(1))
    with pytest.raises(RunError, match="epoch 1: none of the 6 prompts"):
        await run(server, cfg, trainer)
    again = [drop for drop in trainer.drops if drop.epoch == 1]
    assert {drop.reason for drop in again} == {DropReason.FILTERED}
    for group in examples.SEEN[:3]:
        assert [len(each) for each in group.completions_sequences] == [1] * len(group.rollouts)
        ((sample,), *_) = group.completions_sequences
        assert isinstance(sample, Sample)
        prompt = sample.num_tokens - sample.num_trained
        assert sample.input_ids[prompt:].tolist() == group.completions_ids[0]
        assert not sample.trained[:prompt].any()


async def test_rewards_of_every_shape_are_summed_where_they_judge(server, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "Say."}], "task": task, "ground_truth": "7"}
        for task in ("sum", "word") * 3
    ]
    server.state.script = lambda _, seed: says(f"w{7 if seed >> 20 & 1 else 8} said.")
    names = ("long_answers", "tagged", "same_as_truth", "of_sums", "of_words", "not_empty")
    path = write_rows(tmp_path / "rows.jsonl", rows)
    cfg = recipe(server, path, [f"{HERE}:{name}" for name in names], tools=())
    metrics = window(await rolled(server, cfg))
    assert metrics["rewards/tagged/mean"] == metrics["rewards/not_empty/mean"] == 1
    assert metrics["rewards/of_sums/mean"] == 1
    assert metrics["rewards/of_words/mean"] == -1
    assert 0 < metrics["rewards/same_as_truth/mean"] < 1
    assert metrics["reward"] == pytest.approx(
        sum(metrics[f"rewards/{name}/mean"] for name in names[:3]) + 1
    )


@pytest.mark.parametrize(
    "given",
    ["Adder", {"path": f"{HERE}:Adder"}, {"path": f"{HERE}:make_adder", "kwargs": {"a": 1}}],
)
async def test_an_environment_without_a_dataset_judges_itself(server, given):
    server.state.script = adds_one_or_two
    given = f"{HERE}:{given}" if isinstance(given, str) else given
    trainer = await rolled(server, with_environment(server, None, given), prompts=8, stop_after=8)
    metrics = window(trainer)
    assert 0 < metrics["rewards/Adder/mean"] < 1
    assert metrics["tools/increment/call_count"] >= 8 * G
    for group in trainer.groups:
        for sample in group.samples:
            text = heard(sample.input_ids)
            (wanted,) = map(int, re.findall(r"Add up to (\d)", text))
            steps = map(int, re.findall(r'"step": (\d)', text))
            assert (sample.advantage > 0) == (sum(steps) == wanted)
    made_with = given.get("kwargs") if isinstance(given, dict) else None
    assert all(options == made_with for options in examples.SEEN)
    assert bool(examples.SEEN) == bool(made_with)


async def test_an_environment_of_rows_gets_its_columns_and_adds_to_other_rewards(server, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "Add to 2."}], "target": 2, "more": "x"}] * 6
    server.state.script = adds_one_or_two
    path = write_rows(tmp_path / "rows.jsonl", rows)
    cfg = with_environment(server, path, f"{HERE}:AdderOfRows", [f"{HERE}:not_empty"])
    metrics = window(await rolled(server, cfg))
    assert 0 < metrics["rewards/AdderOfRows/mean"] < 1
    assert metrics["reward"] == pytest.approx(1 + metrics["rewards/AdderOfRows/mean"])
    assert {"more": "x"} in examples.SEEN


async def test_a_dataset_that_only_routes_chooses_among_environments(server, tmp_path):
    server.state.script = replies(lambda _, seed: f"Hi {seed}.")
    path = write_rows(
        tmp_path / "rows.jsonl", [{"environment": "code"}, {"environment": "game"}] * 3
    )
    given = {"code": f"{HERE}:Coder", "game": {"path": f"{HERE}:Player"}}
    cfg = with_environment(server, path, given, [f"{HERE}:long_answers"])
    trainer = await rolled(server, cfg)
    assert len(trainer.resolved) == 6
    assert trainer.groups
    for group in trainer.groups:
        for sample in group.samples:
            text = heard(sample.input_ids)
            plays = "Reach the goal." in text
            assert ('"run_code"' in text, '"move"' in text) == (not plays, plays)
    assert examples.SEEN == [{}] * (6 * G)  # the column `environment` reaches no `reset`
    assert np.isfinite(window(trainer)["reward"])
