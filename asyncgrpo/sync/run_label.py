"""The beginning of a run's served names, such as demo-4f1c09, kept beside what it publishes.

A server may serve one run after the other, and keys its prefix cache by name. So a name must mean
one set of weights for ever: two runs of one recipe, or one directory used twice, have other names.
"""

import re
import secrets
from pathlib import Path

FILE = "served-as"
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def run_label(served: Path, run_name: str) -> str:
    """The run's name and six random digits; a resume finds those of the run's start."""
    file = served / FILE
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        label = f"{NOT_IN_NAMES.sub('-', run_name)}-{secrets.token_hex(3)}"
        served.mkdir(parents=True, exist_ok=True)
        file.write_text(label, encoding="utf-8")
        return label
