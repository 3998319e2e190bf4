"""The text about rows that the user's code was tried on, for `validate --try`.

TriedRow --> prompt as the model is shown it; a table: completion, rewards, total
all rows --> what is odd about them, in sentences
"""

import math
from collections.abc import Iterator, Sequence

from asyncgrpo.launch.trial.rows import GOLD_COLUMNS, TriedCompletion, TriedRow

PROMPT_LINES = 24  # of the first row's prompt
TEXT_COLUMNS = 36  # of a completion


def tried_text(rows: Sequence[TriedRow]) -> str:
    """All rows, the first with its whole prompt, and what is odd about them."""
    lines = [f"tried on {len(rows)} row{'s' * (len(rows) != 1)}; no model was asked"]
    for i, row in enumerate(rows):
        lines += ["", *_row_lines(row, whole=i == 0)]
    return "\n".join([*lines, *(f"\nnote: {note}" for note in oddities(rows))])


def oddities(rows: Sequence[TriedRow]) -> Iterator[str]:
    """Sentences about what is no error, and still worth a look before a run."""
    completions = [tried for row in rows for tried in row.completions]
    totals = [tried.total for tried in completions]
    if not completions or any(total is None for total in totals):
        return
    if all(tried.label in ("empty", "given") for tried in completions):
        names = ", ".join(f"`{name}`" for name in GOLD_COLUMNS)
        yield (
            f"no column with right answers was found (looked for {names}, and a reward's "
            "kwargs.column); try answers of your own: --completion TEXT"
        )
    scored = {total for total in totals if total is not None and not math.isnan(total)}
    if len(completions) > len(rows) and len(scored) <= 1:
        what = f"the reward {scored.pop():g}" if scored else "no reward (None)"
        yield f"every completion got {what}; from equal rewards nothing is learned"
    elif any(tried.label not in ("empty", "given") for tried in completions):
        yield from _worthless_answers(rows)


def _worthless_answers(rows: Sequence[TriedRow]) -> Iterator[str]:
    """Rows whose right answer gets no more than an empty completion."""
    found: list[int] = []
    for row in rows:
        best, empty = row.best(empty=False), row.best(empty=True)
        if best is None or (empty is not None and best <= empty):
            found.append(row.row_index)
    if found:
        listed = ", ".join(map(str, found))
        yield f"in row {listed} no completion got more than the empty one"


def _row_lines(row: TriedRow, *, whole: bool) -> Iterator[str]:
    if row.prompt is not None and whole:
        lines = row.prompt.splitlines()
        yield f"row {row.row_index}, as the model is shown it:"
        yield from (f"  | {line}" for line in lines[:PROMPT_LINES])
        if len(lines) > PROMPT_LINES:
            yield f"  | ... and {len(lines) - PROMPT_LINES} lines more"
    else:
        yield f"row {row.row_index}:"
    if row.environment is not None:
        yield f"  environment {row.environment}"
    if row.completions:
        yield from _table(row.completions)


def _table(completions: Sequence[TriedCompletion]) -> Iterator[str]:
    names = list(completions[0].rewards)
    widths = [max(len(name), 6) for name in names]
    labels = max(len(tried.label) for tried in completions)
    head = "  ".join(
        f"{name:>{w}}" for name, w in zip([*names, "total"], [*widths, 6], strict=True)
    )
    yield f"  {'completion':<{labels + 2 + TEXT_COLUMNS}}  {head}"
    for tried in completions:
        shown = f"{tried.label:<{labels}}  {_cut(tried.text):<{TEXT_COLUMNS}}"
        numbers = [tried.rewards[name] for name in names]
        cells = [f"{_number(n):>{w}}" for n, w in zip(numbers, widths, strict=True)]
        yield "  ".join([f"  {shown}", *cells, f"{_number(tried.total):>6}"])


def _cut(text: str) -> str:
    shown = '"{}"'.format(text.replace("\n", "\\n"))
    return shown if len(shown) <= TEXT_COLUMNS else f"{shown[: TEXT_COLUMNS - 3]}..."


def _number(reward: float | None) -> str:
    if reward is None:
        return "-"
    return "None" if math.isnan(reward) else f"{reward:.4g}"
