"""math-verify in a process of its own, which may hang or run out of memory.

    python -m asyncgrpo.sandbox.math_process SOCKET_FD

    takes  {"gold": "...", "answer": "...", "number": null | a float}
    gives  true | false | null                  null: the gold answer cannot be parsed

Each request has `MATH_SECONDS`. Then the kernel ends the process, also inside sympy's C code,
where no Python handler would run. math-verify's own timeouts need the main thread and cannot
interrupt such code: they are off.
"""

import contextlib
import logging
import re
import resource
import signal
import socket
import sys
from functools import lru_cache
from typing import IO, Any, cast

import setproctitle
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

from asyncgrpo.sandbox import frames
from asyncgrpo.sandbox.math_values import same_value
from asyncgrpo.sandbox.protocol import MATH_SECONDS, READY

MOST_MEMORY = 4 << 30  # bytes of address space; 9**9**9 wants more

_DELIMITERS = ("$", r"\boxed", r"\(", r"\[")
_IMAGINARY = re.compile(r"(?<=\d)i\b")
_ANSWER_TARGETS = (
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
    ExprExtractionConfig(),
)


def is_correct(gold: str, answer: str, number: float | None = None) -> bool | None:
    """True where `answer` states the same value as `gold`; None where `gold` has none.

    `number` is the value of a gold answer that a float holds: it is compared within rounding.
    """
    expected = _parse_gold(gold)
    if not expected:
        return None
    given: list[Any] = parse(
        _spaced(answer),
        extraction_config=_ANSWER_TARGETS,
        extraction_mode="first_match",
        parsing_timeout=0,
    )
    return bool(given) and same_value(list(expected), given, number)


def _spaced(text: str) -> str:
    """The text with `1 i` for `1i`, which would be read as a variable."""
    return _IMAGINARY.sub(" i", text)


@lru_cache(maxsize=4096)
def _parse_gold(gold: str) -> tuple[Any, ...]:
    """The value of a gold answer: a solution, or LaTeX or a number without delimiters."""
    text = gold if any(mark in gold for mark in _DELIMITERS) else rf"\boxed{{{gold}}}"
    return tuple(parse(_spaced(text), extraction_mode="first_match", parsing_timeout=0))


def main() -> None:
    """Answer requests until the judge closes the socket."""
    stream = cast("IO[bytes]", socket.socket(fileno=int(sys.argv[1])).makefile("rwb"))
    setproctitle.setproctitle("asyncgrpo: math-verify")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when to end
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(frames.ClosedError):
        frames.send(stream, READY)
        while True:
            frames.send(stream, _answer(**frames.receive(stream)))


def _answer(gold: str, answer: str, number: float | None = None) -> bool | None:
    signal.setitimer(signal.ITIMER_REAL, MATH_SECONDS)
    try:
        return is_correct(gold, answer, number)
    except (Exception, MemoryError, RecursionError):  # noqa: BLE001 - sympy raises anything
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
