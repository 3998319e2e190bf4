"""Every metric, declared once: name, unit, reduction, its question, when to look closer.

    describe("rewards/accuracy/mean")  ->  the row `rewards/{name}/mean`

`docs/metrics.md` is generated from these rows.
"""

import re
from functools import cache

from asyncgrpo.metrics.declared_learning import LEARNING_METRICS
from asyncgrpo.metrics.declared_pipeline import PIPELINE_METRICS
from asyncgrpo.metrics.declared_tools import TOOL_METRICS
from asyncgrpo.metrics.metric import Metric

CATALOG: tuple[Metric, ...] = (*LEARNING_METRICS, *TOOL_METRICS, *PIPELINE_METRICS)


ALWAYS_COUNTED = tuple(metric.pattern for metric in CATALOG if metric.always)


def describe(name: str) -> Metric | None:
    """The row that declares `name`; None for a metric of a user's own."""
    for matches, metric in _compiled():
        if matches.fullmatch(name):
            return metric
    return None


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    return tuple((re.compile(_regex(metric.pattern)), metric) for metric in CATALOG)


def _regex(pattern: str) -> str:
    parts = re.split(r"\{[a-z_]+\}", pattern)
    return "[^/]+".join(re.escape(part) for part in parts)
