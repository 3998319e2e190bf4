"""The catalogue declares what the code records, and the page what the catalogue declares."""

import ast
import re
from pathlib import Path

import pytest

import asyncgrpo
from asyncgrpo.metrics.catalog import CATALOG, describe
from asyncgrpo.metrics.reference import page

ROOT = Path(asyncgrpo.__file__).parent
FAMILIES = sorted({m.pattern.partition("/")[0] for m in CATALOG if "/" in m.pattern})
METRIC_NAME = re.compile(rf"({'|'.join(FAMILIES)})/[a-z0-9_/]*[a-z0-9]")


def nodes() -> list[ast.AST]:
    """Everything in the code of the processes that record."""
    files = [
        f for package in ("rollout", "training", "sync") for f in (ROOT / package).rglob("*.py")
    ]
    return [node for file in files for node in ast.walk(ast.parse(file.read_text()))]


def literals() -> set[str]:
    return {n.value for n in nodes() if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def composed() -> set[re.Pattern[str]]:
    """The names that f-strings make: `f"perf/{phase}_s"`; either end of a name may be greedy."""
    found: set[re.Pattern[str]] = set()
    for node in nodes():
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            for part in ("([a-z_{}]+)", "([a-z_{}]+?)"):
                texts = [
                    re.escape(str(v.value)) if isinstance(v, ast.Constant) else part
                    for v in node.values
                ]
                found |= {re.compile("".join(texts))} if "/" in str(node.values[0].value) else set()
    return found


def undeclared(names: set[str]) -> list[str]:
    """Names that look like a metric's and are not in the catalogue."""
    return sorted(n for n in names if METRIC_NAME.fullmatch(n) and describe(n) is None)


def test_what_is_recorded_is_declared():
    names = literals()
    assert len([name for name in names if METRIC_NAME.fullmatch(name)]) > 40  # the scan finds them
    assert undeclared(names) == []


def test_what_an_f_string_composes_is_declared():
    names = [metric.pattern for metric in CATALOG]
    own = [p for p in composed() if p.pattern.partition("/")[0] in FAMILIES]
    assert len(own) > 10
    assert [p.pattern for p in own if not any(p.fullmatch(name) for name in names)] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_that_nobody_declared_is_found_in_every_family(family: str):
    name = f"{family}/nobody_declared_this"
    assert undeclared({name, "docs/metrics.md", "nobody/declared_this_family"}) == [name]


def test_what_is_declared_is_recorded():
    written, patterns = literals(), composed()

    def is_made(name: str) -> bool:
        """A name that an f-string makes of literals, and of the parts in braces."""
        matches = [match for pattern in patterns if (match := pattern.fullmatch(name))]
        return any(all(g in written or g[0] == "{" for g in match.groups()) for match in matches)

    names = [metric.pattern for metric in CATALOG]
    assert is_made("completions/max_terminated_length")
    assert not is_made("perf/nobody_times_this_s")
    assert [name for name in names if name not in written and not is_made(name)] == []


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


def test_only_a_count_of_one_name_may_be_0_where_nothing_happened():
    always = [metric for metric in CATALOG if metric.always]
    assert len(always) == 6
    assert [m.pattern for m in always if "{" in m.pattern or m.reduction != "sum"] == []
