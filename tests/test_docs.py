"""The docs: names and links that exist, lines that fit, an index of all decisions."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
GENERATED = {"configuration.md", "metrics.md", "commands.md"}
NAMED = re.compile(r"(?<![\w./])([\w/]+\.py):([\w.]+)")  # not ./rewards.py:mine of an example
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")
DECISION = re.compile(r"docs/decisions/(\d{4})")
WIDEST = 120


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def names_of(file: Path) -> frozenset[str]:
    """The functions, classes, methods and module variables that a file defines."""

    def within(body: list[ast.stmt], prefix: str = "") -> list[str]:
        found: list[str] = []
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.append(prefix + name)
                case ast.ClassDef(name=name):
                    found += [prefix + name, *within(node.body, f"{prefix}{name}.")]
                case ast.Assign(targets=[ast.Name(id=name)]):
                    found.append(prefix + name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.append(prefix + name)
                case _:
                    pass
        return found

    return frozenset(within(ast.parse(file.read_text()).body))


def prose(page: Path) -> list[str]:
    """The lines outside tables and code."""
    lines, in_code = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith(("|", "    ")):
            lines.append(line)
    return lines


def test_every_function_that_a_page_names_exists():
    wrong, count = [], 0
    for page in PAGES:
        for file, name in NAMED.findall(page.read_text()):
            count += 1
            at = next((p for p in (ROOT / "asyncgrpo" / file, ROOT / file) if p.is_file()), None)
            if at is None or name.rstrip(".") not in names_of(at):
                wrong.append(f"{page_id(page)}: {file}:{name}")
    assert count > 40  # the scan finds them
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_that_a_page_names_exists(page: Path):
    """Named from the root, or a module from the package's folder."""
    text = page.read_text()
    named = re.findall(r"`((?:asyncgrpo|tests|docs|recipes)/[\w/.-]+\.\w+)`", text)
    missing = [file for file in named if not (ROOT / file).exists()]
    modules = re.findall(r"`([a-z_]+/[\w/]+\.py)\b", text)
    missing += [m for m in modules if not any((p / m).exists() for p in (ROOT, ROOT / "asyncgrpo"))]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path):
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target
        if not file.exists():
            broken.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            broken += [] if anchor in slugs else [f"{target}#{anchor}"]
    assert broken == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in GENERATED], ids=page_id
)
def test_lines_fit(page: Path):
    assert [line for line in prose(page) if len(line) > WIDEST] == []


def test_every_decision_is_in_the_index_and_every_one_cited_exists():
    folder = ROOT / "docs" / "decisions"
    files = {file.name for file in folder.glob("[0-9]*.md")}
    assert set(LINK.findall((folder / "README.md").read_text())) == {(name, "") for name in files}
    numbers = {name[:4] for name in files}
    assert len(numbers) == len(files)
    sources = [*(ROOT / "asyncgrpo").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *PAGES]
    cited = {n for file in sources for n in DECISION.findall(file.read_text())}
    assert cited <= numbers
