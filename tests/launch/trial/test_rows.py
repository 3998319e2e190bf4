"""`try_rows`: the user's code at work on a few rows, without a model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncgrpo.config import Config, RewardSource
from asyncgrpo.errors import DataError, HookError
from asyncgrpo.launch.trial import rows as trial
from asyncgrpo.launch.trial.rows import TriedRow, right_answers, try_rows
from tests.rollout import fakes

REWARDS = """
def exact(completions, answer, **_):
    return [float(c[-1]["content"] == f"\\\\boxed{{{a}}}") for c, a in zip(completions, answer)]

def fragile(completions, **_):
    return [1 / len(c[-1]["content"]) for c in completions]

def ended(completion_ids, **_):
    return [float(ids[-1] == 2) for ids in completion_ids]

def silent(completions, **_):
    return [None for _ in completions]
"""


class Greeter:
    """An environment with a greeting; its reward before any action is 0.25."""

    def reset(self, answer: int) -> str:
        return f" w{answer}"

    def get_reward(self) -> float:
        return 0.25


@pytest.fixture(autouse=True)
def small_tokenizer(monkeypatch):
    monkeypatch.setattr(trial, "load_tokenizer", lambda _config: fakes.tokenizer())


def recipe(tmp_path: Path, *rewards: str, **rollout: Any) -> Config:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": fakes.conversation(3 + i), "answer": 10 + i} for i in range(4)]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    code = tmp_path / "reward.py"
    code.write_text(REWARDS)
    sources = [f"{code}:{name}" for name in rewards]
    return fakes.config(
        str(data),
        "http://127.0.0.1:1",
        sources,
        data={"path": str(data), "shuffle": False},
        rollout={"rewards": sources, **rollout},
    )


def totals(row: TriedRow) -> list[float | None]:
    return [tried.total for tried in row.completions]


async def test_each_reward_scores_the_answer_an_empty_text_and_those_given(tmp_path: Path):
    rows = await try_rows(recipe(tmp_path, "exact", "ended"), 2, ["w7"])
    assert [row.row_index for row in rows] == [0, 1]
    assert rows[1].prompt is not None
    assert rows[1].prompt.split() == ["w60", "w4", "w61"]
    tried = rows[1].completions
    assert [(t.label, t.text) for t in tried] == [
        ("column answer", "11"),
        ("in \\boxed{}", "\\boxed{11}"),
        ("empty", ""),
        ("given", "w7"),
    ]
    assert [t.rewards["exact"] for t in tried] == [0.0, 1.0, 0.0, 0.0]
    assert all(t.rewards["ended"] == 1.0 for t in tried)  # each has its end token
    assert totals(rows[1]) == [1.0, 2.0, 1.0, 1.0]


async def test_a_reward_that_raises_is_told_by_row_and_line_and_the_others_score(tmp_path: Path):
    rows = await try_rows(recipe(tmp_path, "exact", "fragile"), 2, [])
    assert [len(row.errors) for row in rows] == [1, 1]
    assert "row 1: reward `fragile` raised ZeroDivisionError" in rows[1].errors[0]
    assert "reward.py:6 in fragile" in rows[1].errors[0]
    assert [t.rewards for t in rows[1].completions] == [{"exact": 0}, {"exact": 1}, {"exact": 0}]
    assert totals(rows[1]) == [None] * 3


async def test_no_more_rows_than_there_are(tmp_path: Path):
    assert len(await try_rows(recipe(tmp_path, "exact"), 100, [])) == 4


async def test_what_no_reward_scores_has_no_total(tmp_path: Path):
    (row,) = await try_rows(recipe(tmp_path, "silent"), 1, [])
    assert all(math.isnan(t.total) for t in row.completions if t.total is not None)
    assert row.best(empty=False) is None


async def test_an_environment_is_reset_and_judged(tmp_path: Path):
    config = recipe(tmp_path, environments=f"{__name__}:Greeter")
    (row,) = await try_rows(config, 1, [])
    assert row.environment == "Greeter: reward before any action 0.25"
    assert row.prompt is not None
    assert "w3 w10" in row.prompt
    assert not row.completions


async def test_a_mistake_of_the_worker_ends_it(tmp_path: Path):
    with pytest.raises(HookError, match="has no `nothing`"):
        await try_rows(recipe(tmp_path, "nothing"), 1, [])
    with pytest.raises(DataError, match="chat template"):
        await try_rows(recipe(tmp_path, "exact", chat_template="{{ 1 / 0 }}"), 1, [])


@pytest.mark.parametrize(
    ("columns", "kwargs", "expected"),
    [
        ({"answer": "so 3 + 4\n#### 7"}, {}, ["so 3 + 4\n#### 7", "\\boxed{7}"]),
        ({"solution": "\\boxed{x}", "answer": "y"}, {}, ["\\boxed{x}", "\\boxed{x}"]),
        ({"meta": {"gold": 7}, "answer": "y"}, {"column": "meta.gold"}, ["7", "\\boxed{7}"]),
        ({"target": np.int64(3)}, {}, ["\\boxed{3}"]),
        ({"answer": ["a", "b"]}, {}, ["\\boxed{a}"]),
        ({"answer": None}, {}, []),
        ({"answer": ""}, {}, []),
        ({"answer": {"stdin": "1"}}, {}, []),
        ({"tests": "assert f() == 1"}, {}, []),
    ],
)
def test_the_right_answer_of_a_row(columns: dict[str, Any], kwargs: dict[str, Any], expected: Any):
    source = RewardSource(path="m:f", kwargs=kwargs)
    assert [text for _, text in right_answers(columns, [source])] == expected
