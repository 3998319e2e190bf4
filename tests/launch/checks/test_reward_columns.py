"""Rewards without their columns are reported before anything starts; none runs."""

from pathlib import Path

import pytest

from asyncgrpo.config import RewardSource
from asyncgrpo.launch.checks.reward_columns import problems, required_parameters

SOURCE = """
raise SystemExit("this module ran")

def graded(prompts, completions, level, *, judge, strict=True, **columns):
    return [0.0]

async def plain(completions, **columns):
    return [0.0]

@decorated
def other(level):
    return [0.0]

class Judge:
    def __call__(self, level):
        return [0.0]
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch) -> Path:
    file = tmp_path / "my_rewards.py"
    file.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return file


def told(*paths: str, columns=("answer",), **fields) -> list[str]:
    return list(problems([RewardSource(path=path, **fields) for path in paths], columns))


def test_the_parameters_without_default_are_read_not_run(rewards: Path):
    for module in (str(rewards), "my_rewards"):
        expected = ["prompts", "completions", "level", "judge"]
        assert required_parameters(module, "graded") == expected
        assert required_parameters(module, "plain") == ["completions"]


def test_what_is_made_otherwise_is_left_to_the_worker(rewards: Path):
    for name in ("other", "Judge", "missing"):
        assert required_parameters(str(rewards), name) is None
    assert required_parameters("no_such_package.module", "f") is None
    assert required_parameters("json", "no_function") is None


def test_a_missing_column_is_named_with_those_there_are(rewards: Path):
    (line,) = told(f"{rewards}:graded", f"{rewards}:plain")
    assert line.startswith("rollout.rewards[0]: reward `graded` needs `level`")
    assert "(`answer`)" in line
    assert told(f"{rewards}:graded", columns=["level"], kwargs={"judge": "x"}) == []


def test_built_in_rewards_say_what_they_need():
    built_in = "asyncgrpo.rewards:"
    assert told(f"{built_in}accuracy_reward", f"{built_in}gsm8k_reward") == []
    (line,) = told(f"{built_in}accuracy_reward", columns=["level"])
    assert "needs a column `solution` or `answer`; the dataset has `level`" in line
    (line,) = told(f"{built_in}code_reward")
    assert "needs a column `tests`" in line
    columns = ["test_list"]
    assert told(f"{built_in}code_reward", columns=columns, kwargs={"column": "test_list"}) == []


def test_an_option_that_a_built_in_reward_does_not_have_is_told_with_those_it_has():
    (line,) = told("asyncgrpo.rewards:length_reward", kwargs={"max_token": 3})
    assert "kwargs has `max_token`, which it does not take; expected buffer_tokens, max_to" in line
