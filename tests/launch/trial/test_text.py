"""The text about rows that the user's code was tried on."""

from asyncgrpo.launch.trial.rows import TriedCompletion, TriedRow
from asyncgrpo.launch.trial.text import PROMPT_LINES, oddities, tried_text

NAN = float("nan")


def row(*completions: tuple[str, str, float | None], index: int = 0) -> TriedRow:
    """A row of completions: label, text, total."""
    tried = [
        TriedCompletion(label, text, {"r": total or 0.0}, total)
        for label, text, total in completions
    ]
    return TriedRow(index, prompt="user: 1 + 1", completions=tried)


def test_a_table_of_rewards_below_the_prompt():
    first = row(("column answer", "2\nor two", 1.0), ("empty", "", NAN))
    second = row(("column answer", "x" * 99, 0.5), index=7)
    second.environment = "Counter: gives no reward"
    assert tried_text([first, second]).splitlines() == [
        "tried on 2 rows; no model was asked",
        "",
        "row 0, as the model is shown it:",
        "  | user: 1 + 1",
        "  completion                                                r   total",
        '  column answer  "2\\nor two"                                1       1',
        '  empty          ""                                      None    None',
        "",
        "row 7:",
        "  environment Counter: gives no reward",
        "  completion                                                r   total",
        f'  column answer  "{"x" * 32}...     0.5     0.5',
    ]


def test_a_long_prompt_is_cut_by_lines():
    long = TriedRow(0, prompt="\n".join(map(str, range(PROMPT_LINES + 3))))
    assert tried_text([long]).endswith(f"| {PROMPT_LINES - 1}\n  | ... and 3 lines more")


def test_equal_rewards_are_odd():
    (note,) = oddities([row(("column answer", "2", 0.0), ("empty", "", 0.0))])
    assert note.startswith("every completion got the reward 0;")
    (note,) = oddities([row(("column answer", "2", NAN), ("empty", "", NAN))])
    assert note.startswith("every completion got no reward (None);")


def test_a_right_answer_that_earns_no_more_than_an_empty_one_is_odd():
    good = row(("column answer", "2", 1.0), ("empty", "", 0.0))
    bad = row(("column answer", "2", 0.5), ("empty", "", 0.5), index=3)
    assert [*oddities([good])] == []
    assert [*oddities([good, bad])] == ["in row 3 no completion got more than the empty one"]


def test_rows_without_a_right_answer_are_odd_and_failures_are_not_judged():
    (first, *_) = oddities([row(("empty", "", 0.0), ("given", "2", 1.0))])
    assert first.startswith("no column with right answers was found (looked for `solution`")
    assert [*oddities([row(("column answer", "2", None), ("empty", "", None))])] == []
    assert [*oddities([TriedRow(0)])] == []
