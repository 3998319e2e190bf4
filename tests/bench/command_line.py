"""B10: what the command line costs before it does anything."""

import sys
from pathlib import Path

from tests.bench.figure import Figure, child_cpu_seconds

RECIPE = Path("recipes/demo.yaml")


def measure() -> list[Figure]:
    """CPU seconds of `--help` and of `validate` on the demo recipe."""
    asyncgrpo = [sys.executable, "-m", "asyncgrpo"]
    return [
        _at_most(0.5, "--help", [*asyncgrpo, "--help"]),
        _at_most(1.5, "validate", [*asyncgrpo, "validate", str(RECIPE)]),
    ]


def _at_most(bar: float, what: str, command: list[str]) -> Figure:
    return Figure("B10", what, child_cpu_seconds(command), "s", bar, at_least=False)
