"""The metrics reference, printed from the catalogue: `python -m asyncgrpo.metrics.reference`.

CATALOG --rows--> one table per part of the pipeline --> docs/metrics.md
"""

from collections.abc import Iterable

from asyncgrpo.metrics import declared_learning as learning
from asyncgrpo.metrics import declared_pipeline as pipeline
from asyncgrpo.metrics import declared_tools as tools
from asyncgrpo.metrics.metric import Metric

INTRODUCTION = """\
# Metrics

What does a number in `metrics.jsonl` mean, and when should it worry you? Which side holds a run
back is answered from these metrics by

    asyncgrpo diagnose runs/demo

This page is printed from the catalogue by
`python -m asyncgrpo.metrics.reference > docs/metrics.md`.

Every log window (`tracking.logging_steps` steps) is one JSON object: `step`, `time`,
`policy_version`, `epoch`, and the metrics observed in it. A metric without an observation is
absent. How a window's observations become one number follows from the name's last part:

| its last part holds the word | the window's value is |
|---|---|
| `count` | the sum |
| `max`, `min` | the extreme |
| none of these | the mean of all that was observed, by weight; a rate is total / seconds |

`num_tokens` is the total since the start. Names in braces stand for a reward, a staleness or a
state of the run's own.
"""

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Completions", learning.COMPLETIONS),
    ("Rewards", learning.REWARDS),
    ("Sampler against policy", learning.SAMPLING),
    ("Learning", learning.LEARNING),
    ("Rollouts", pipeline.ROLLOUT),
    ("Tools", tools.TOOLS),
    ("Environments", tools.ENVIRONMENTS),
    ("Samples", pipeline.SAMPLES),
    ("Rows and steps", pipeline.BATCH),
    ("Time", pipeline.PERF),
    ("Sync", pipeline.SYNC),
    ("Ledger", pipeline.LEDGER),
)


def page() -> str:
    """The whole page, as Markdown."""
    tables = [f"## {title}\n\n{_table(metrics)}" for title, metrics in SECTIONS]
    return "\n".join([INTRODUCTION, *tables])


def _table(metrics: Iterable[Metric]) -> str:
    rows = [
        f"| `{m.pattern}` | {m.unit_text} | {m.reduction} | {_cell(m.answers)} | {_cell(m.worry)} |"
        for m in metrics
    ]
    head = "| metric | unit | window | it answers | look closer when |\n|---|---|---|---|---|"
    return "\n".join([head, *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
