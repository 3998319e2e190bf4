"""A figure against its bar, and the table the benchmarks print."""

import importlib
import sys

import msgspec
import pytest

from tests.bench import __main__ as bench
from tests.bench.__main__ import main, table
from tests.bench.figure import Figure, child_cpu_seconds, cpu_seconds


@pytest.mark.parametrize(
    ("value", "bar", "at_least", "passed"),
    [
        pytest.param(2.0, 1.0, True, True, id="above a floor"),
        pytest.param(0.5, 1.0, True, False, id="below a floor"),
        pytest.param(0.5, 1.0, False, True, id="below a ceiling"),
        pytest.param(2.0, 1.0, False, False, id="above a ceiling"),
        pytest.param(2.0, None, True, None, id="no bar"),
    ],
)
def test_a_figure_is_judged_by_the_side_of_its_bar(value, bar, at_least, passed):
    assert Figure("b", "w", value, "s", bar, at_least=at_least).passed is passed


def test_a_childs_cpu_time_is_its_own_work():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    assert child_cpu_seconds([sys.executable, "-c", busy], repeats=1) >= 0.3


def test_sleeping_is_not_cpu_time():
    import time

    assert cpu_seconds(lambda: time.sleep(0.05), repeats=1) < 0.05


def test_an_unknown_benchmark_is_named(capsys):
    assert main(["nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err


def test_a_benchmark_has_a_number_and_a_name(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    measured = []
    monkeypatch.setattr(bench, "run", lambda name: measured.append(name) or [])
    assert main(["b10"]) == main(["cli"]) == main(["B10"]) == 0
    assert measured == ["cli"] * 3
    assert (tmp_path / "bench/results.json").read_text() == "[]"


def test_json_is_printed_instead_of_the_table(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "run", lambda name: [Figure(name, "w", 1.0, "s", 2.0)])
    assert main(["B10", "--json"]) == 1
    printed = capsys.readouterr().out
    assert msgspec.json.decode(printed, type=list[Figure]) == [Figure("cli", "w", 1.0, "s", 2.0)]
    assert printed.strip() == (tmp_path / "bench/results.json").read_text()


@pytest.mark.parametrize("name", bench.NAMES.values())
def test_every_benchmark_has_a_module(name):
    assert callable(importlib.import_module(f"tests.bench.{bench.MODULES.get(name, name)}").measure)


def test_the_table_has_a_row_per_figure():
    assert table([Figure("b", "w", 1.0, "s"), Figure("b", "v", 1.0, "s", 2.0)]).row_count == 2
