"""The catalogue declares what the code records, and the page what the catalogue declares."""

import ast
import re
from pathlib import Path

import pytest

import asyncgrpo
from asyncgrpo.metrics.catalog import CATALOG, describe
from asyncgrpo.metrics.reference import page

ROOT = Path(asyncgrpo.__file__).parent
FAMILIES = "batch|clip_ratio|completions|ledger|perf|rewards|rollout|sample|sampling|sync"
METRIC_NAME = re.compile(rf"({FAMILIES})/[a-z0-9_/]*[a-z0-9]")


def recorded() -> set[str]:
    """Every literal in the processes' code that looks like a metric's name."""
    names: set[str] = set()
    for package in ("rollout", "training", "sync"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names |= {node.value} if METRIC_NAME.fullmatch(node.value) else set()
    return names


def test_what_is_recorded_is_declared():
    names = recorded()
    assert len(names) > 40  # the scan finds them
    assert sorted(name for name in names if describe(name) is None) == []


def test_every_row_is_whole_and_named_once():
    patterns = [metric.pattern for metric in CATALOG]
    assert len(set(patterns)) == len(patterns)
    assert [m.pattern for m in CATALOG if not m.answers] == []


def test_a_family_is_found_by_any_of_its_names():
    family = describe("rewards/accuracy/mean")
    assert family is not None
    assert family.pattern == "rewards/{name}/mean"
    assert describe("sampling/by_staleness/3/logp_difference") is not None
    assert describe("rewards/a/b/mean") is None
    assert describe("tools/nobody_declared_this") is None


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("perf/step_s", "seconds"),
        ("rollout/generated_tokens_per_s", "tokens/s"),
        ("batch/row_fill_frac", "0 to 1"),
        ("batch/samples_per_step", "samples"),
    ],
)
def test_units_follow_the_suffix_unless_the_row_says_otherwise(name: str, unit: str):
    metric = describe(name)
    assert metric is not None
    assert metric.unit_text == unit


def test_the_page_is_up_to_date():
    written = (ROOT.parent / "docs" / "metrics.md").read_text()
    command = "python -m asyncgrpo.metrics.reference > docs/metrics.md"
    assert written == page(), f"run: {command}"
    assert all(f"`{metric.pattern}`" in written for metric in CATALOG)
