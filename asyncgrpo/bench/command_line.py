"""B10: what the command line costs before it does anything."""

import sys
from pathlib import Path

from asyncgrpo.bench.figure import Figure, child_cpu_seconds

RECIPE = Path("recipes/demo.yaml")


def measure() -> list[Figure]:
    """CPU seconds of `--help` and of `validate` on the demo recipe."""
    asyncgrpo = [sys.executable, "-m", "asyncgrpo"]
    return [
        Figure(
            "cli", "--help", child_cpu_seconds([*asyncgrpo, "--help"]), "s", 0.5, at_least=False
        ),
        Figure(
            "cli",
            "validate",
            child_cpu_seconds([*asyncgrpo, "validate", str(RECIPE)]),
            "s",
            1.5,
            at_least=False,
        ),
    ]
