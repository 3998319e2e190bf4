"""The text about derived values, for `train` and `validate`.

key  value  (why)          a line each, folded to the width of a terminal
"""

import shutil
import sys
import textwrap

from asyncgrpo.config import Derivation


def derived_text(derivation: Derivation) -> str:
    """Each derived value with its reason; lines are folded to the terminal."""
    columns = _columns()
    keys = max((len(d.key) for d in derivation.derived), default=0)
    lines: list[str] = []
    for d in derivation.derived:
        line = f"  {d.key:<{keys}}  {_plain(d.value)}  ({d.reason})"
        lines += _folded(line, columns, indent=keys + 4)
    return "\n".join(["defaults chosen for this machine:", *lines])


def _folded(line: str, columns: int | None, indent: int) -> list[str]:
    if columns is None or len(line) < columns or columns < 2 * indent:
        return [line]
    head, rest = line[:indent], line[indent:]
    folded = textwrap.wrap(
        rest, columns - indent - 1, break_long_words=False, break_on_hyphens=False
    )
    return [head + folded[0], *(" " * indent + part for part in folded[1:])]


def _columns() -> int | None:
    """The width of the terminal that is written to, if it is one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _plain(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
