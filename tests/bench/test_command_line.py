"""B10's figures are CPU seconds of the commands they name, each against its ceiling."""

import pytest

from tests.bench import command_line


def test_help_and_validate_are_judged_by_their_ceilings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        command_line, "child_cpu_seconds", lambda argv: 0.6 if "--help" in argv else 1.2
    )
    figures = {figure.what: figure for figure in command_line.measure()}
    assert {name: figure.passed for name, figure in figures.items()} == {
        "--help": False,
        "validate": True,
    }
    assert {figure.bench for figure in figures.values()} == {"B10"}
