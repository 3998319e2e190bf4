"""Answers that people report, judged: `answers.jsonl`, with what is decided otherwise."""

import json
from pathlib import Path

import pytest

from asyncgrpo import rewards
from asyncgrpo.errors import HookError

CASES = Path(__file__).parents[1] / "assets" / "cases" / "answers.jsonl"
COLUMN = {"accuracy_reward": "solution", "exact_match_reward": "answer", "gsm8k_reward": "answer"}

# The list leaves these to a convention; here is ours.
DECIDED = {
    "u01": (1.0, "50% in answer to 50: datasets leave the sign out where the question has it"),
    "t31": (1.0, "10 in answer to 10%: the same, the other way round"),
}
REFUSED = {"g09": "expected `#### N`"}  # no such gold answer is GSM8K's: the column is wrong


def cases():
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def judged(case):
    reward = getattr(rewards, case["reward"])
    completion = [{"role": "assistant", "content": case["completion"]}]
    (given,) = reward([completion], **{COLUMN[case["reward"]]: [case["gold"]]})
    return given


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_an_answer_of_the_list(case):
    if case["id"] in REFUSED:
        with pytest.raises(HookError, match=REFUSED[case["id"]]):
            judged(case)
        return
    want, _ = DECIDED.get(case["id"], (case["want"], ""))
    assert judged(case) == want, case["why"]


def test_the_decided_ones_differ_from_the_list():
    wants = {case["id"]: case["want"] for case in cases()}
    assert all(wants[name] != want for name, (want, _) in DECIDED.items())
