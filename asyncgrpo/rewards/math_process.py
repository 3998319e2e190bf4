"""math-verify in a process of its own, which may hang or burst without taking the worker along.

    stdin  {"gold": "...", "answer": "..."}     one JSON object per line
    stdout true | false | null                  null: the gold answer cannot be parsed

Each request has `SECONDS_PER_REQUEST`; then the kernel ends the process, also inside sympy's C
code, where no Python handler would run. math-verify's own timeouts need the main thread and
cannot interrupt such code: they are off.
"""

import json
import logging
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

import setproctitle
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from asyncgrpo.rewards.math_protocol import READY, SECONDS_PER_REQUEST

MOST_MEMORY = 4 << 30  # bytes of address space; 9**9**9 wants more

_DELIMITERS = ("$", r"\boxed", r"\(", r"\[")
_ANSWER_TARGETS = (
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
    ExprExtractionConfig(),
)


def is_correct(gold: str, answer: str) -> bool | None:
    """Whether `answer` states the same value as `gold`; None where `gold` has none."""
    expected = _parse_gold(gold)
    if not expected:
        return None
    given: list[Any] = parse(
        answer, extraction_config=_ANSWER_TARGETS, extraction_mode="first_match", parsing_timeout=0
    )
    return verify(list(expected), given, timeout_seconds=0) if given else False


@lru_cache(maxsize=4096)
def _parse_gold(gold: str) -> tuple[Any, ...]:
    """The value of a gold answer: a whole solution, or LaTeX or a number without delimiters."""
    text = gold if any(mark in gold for mark in _DELIMITERS) else rf"\boxed{{{gold}}}"
    return tuple(parse(text, extraction_mode="first_match", parsing_timeout=0))


def main() -> None:
    """Answer requests until stdin closes."""
    setproctitle.setproctitle("asyncgrpo: math-verify")
    logging.disable(logging.WARNING)  # math-verify warns that its timeouts are off
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print(READY, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_REQUEST)
        try:
            correct = is_correct(request["gold"], request["answer"])
        except (Exception, MemoryError, RecursionError):  # noqa: BLE001 - sympy raises anything
            correct = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(correct), flush=True)


if __name__ == "__main__":
    main()
