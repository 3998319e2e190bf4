"""Rooms stay small enough to look through, and every test lies where its module does."""

from pathlib import Path

import pytest

from tests.product import PRODUCT, ROOT, modules

MOST_LINES = 400


@pytest.mark.parametrize(
    ("room", "most"), [("rollout", 18), ("training", 15), ("launch", 12), ("config", 12)]
)
def test_a_folder_holds_no_more_than_a_reader_can_take_in(room, most):
    for folder in {module.parent for module in (PRODUCT / room).rglob("*.py")}:
        assert len(entries(folder)) <= most, f"{folder}: {sorted(entries(folder))}"


def entries(folder):
    """Modules, and rooms that hold some: not what an interpreter or an older commit left behind."""
    modules = {path.relative_to(folder).parts[0] for path in folder.rglob("*.py")}
    return modules - {"__init__.py"}


@pytest.mark.parametrize("folder", ["asyncgrpo", "tests", "recipes"])
def test_no_file_is_longer_than_it_can_be_read(folder):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / folder).rglob("*.py")
        if ROOT / "tests" / "assets" not in path.parents
    }
    lengths.pop("tests/fake_vllm.py", None)  # one server, read endpoint by endpoint
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_a_test_that_names_a_module_lies_at_its_place():
    packages = {path.name for path in PRODUCT.iterdir() if path.is_dir()}
    places = {}
    for module in modules():
        places.setdefault(module.stem, set()).add(module.parent)
    strays = []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        place, module = test.relative_to(ROOT / "tests").parent, test.stem.removeprefix("test_")
        of_the_product = place == Path() or place.parts[0] in packages
        if of_the_product and module in places and place not in places[module]:
            strays.append(f"{place / test.name}: {module}.py is in {sorted(places[module])}")
    assert not strays, "\n".join(strays)
