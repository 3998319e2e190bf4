"""The completion that a reward was at when it raised, seen in its variables."""

import pytest

from asyncgrpo.rollout.scoring.culprit import SHOWN, describe_culprit, find_culprit

COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("4", "", "five", "4")]


def over_messages(completions):
    return [float(completion[-1]["content"]) for completion in completions]


def over_texts(completions):
    total = 0.0
    for completion in completions:
        text = completion[-1]["content"]
        total += parsed(text)
    return total


def parsed(answer):
    return float(answer)


def of_the_group(completions):
    raise ValueError(len(completions))


def raised(function):
    with pytest.raises(ValueError) as told:
        function(COMPLETIONS[1:] if function is over_texts else COMPLETIONS)
    return told.value


def test_the_completion_in_a_variable_is_found():
    error = raised(over_messages)
    assert find_culprit(error, COMPLETIONS) in (1, None)  # a comprehension may have its own frame


def test_the_innermost_function_decides():
    completions = [COMPLETIONS[2], COMPLETIONS[0]]
    with pytest.raises(ValueError, match="five") as told:
        over_texts(completions)
    assert find_culprit(told.value, completions) == 0
    assert describe_culprit(told.value, completions) == "completion 1 of 2: 'five'"


def test_what_does_not_show_is_not_guessed():
    error = raised(of_the_group)
    assert find_culprit(error, COMPLETIONS) is None
    assert describe_culprit(error, COMPLETIONS) == "its group has 4 completions, the first is '4'"
    assert describe_culprit(error, []) == "no completion"


def test_a_long_completion_is_cut():
    long = [[{"role": "assistant", "content": "x" * 1000}]]
    assert describe_culprit(ValueError(), long).endswith(f"{'x' * SHOWN}...'")
