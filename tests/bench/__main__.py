"""Run the benchmarks named, by number or by name, or all; a table, and bench/results.json.

    python -m tests.bench [--json] [B1 tree ...]

`--json` prints the figures as JSON instead of the table. Exit code 1 where a bar is missed.
"""

import importlib
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench.figure import Figure

NAMES = {
    "B1": "planner",
    "B2": "tree",
    "B3": "lm_head",
    "B4": "rollout_loop",
    "B5": "hand_over",
    "B10": "cli",
    "B12": "scoring",
    "B13": "memory",
    "B14": "api_server",
}
MODULES = {"cli": "command_line"}  # where it is not the name
RESULTS = Path("bench/results.json")


def main(arguments: list[str]) -> int:
    """Measure, print, write; returns the exit code."""
    as_json = "--json" in arguments
    names = [NAMES.get(name.upper(), name) for name in arguments if name != "--json"]
    unknown = sorted(set(names) - set(NAMES.values()))
    if unknown:
        known = ", ".join(f"{number} or {name}" for number, name in NAMES.items())
        sys.stderr.write(f"unknown benchmark {unknown[0]!r}; there are: {known}\n")
        return 2
    figures = [figure for name in names or NAMES.values() for figure in run(name)]
    results = msgspec.json.format(msgspec.json.encode(figures), indent=1)
    if as_json:
        sys.stdout.write(results.decode() + "\n")
    else:
        Console().print(table(figures))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(results)
    return 1 if any(figure.passed is False for figure in figures) else 0


def run(name: str) -> list[Figure]:
    """The figures of one benchmark; its module is imported only here."""
    return importlib.import_module(f"tests.bench.{MODULES.get(name, name)}").measure()


def table(figures: list[Figure]) -> Table:
    """The figures against their bars."""
    shown = Table("bench", "what", "figure", "bar", "")
    for figure in figures:
        bar = "" if figure.bar is None else f"{'>=' if figure.at_least else '<='} {figure.bar:g}"
        verdict = {None: "", True: "ok", False: "MISSED"}[figure.passed]
        value = f"{figure.value:.3g} {figure.unit}"
        shown.add_row(figure.bench, figure.what, value, bar, verdict)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
