"""`code_reward`: 1 where a completion's Python does what the column `tests` asks, else 0.

    completion -> after </think> -> last program block --program-->  sandbox  --verdicts--> reward
                                        column `tests` ---tests--'

| a row's `tests`                                 | passed when                                    |
|---|---|
| `"assert add(1, 2) == 3"`, or a list of such    | it raises nothing                              |
| one that defines `check`; column `entry_point`  | `check(<entry_point>)` raises nothing          |
| `[{"input": "1 2", "output": "3"}, ...]`        | the program, given the input, writes the output|
| `{"inputs": [...], "outputs": [...]}`           | the same                                       |
| any of these as JSON text                       |                                                |

A program runs confined: the table in `sandbox/__init__.py` says how.
"""

import asyncio
import contextlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from asyncgrpo.errors import HookError
from asyncgrpo.rewards.code_blocks import program_in
from asyncgrpo.rewards.completion import Completion, after_reasoning, text_of
from asyncgrpo.rewards.needs import needs
from asyncgrpo.sandbox.limits import SandboxLimits
from asyncgrpo.sandbox.programs import Sandbox
from asyncgrpo.sandbox.protocol import OK, PASSED, UNSUPPORTED

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests that are Python, run beside the program."""

    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """Tests that are inputs with their outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Tests = Asserts | Runs


@needs(lambda kwargs: [str(kwargs.get("column", "tests"))])
async def code_reward(
    completions: Sequence[Completion],
    entry_point: Sequence[str | None] | None = None,
    *,
    column: str = "tests",
    partial: bool = False,
    seconds: float = 5.0,
    memory_mb: int = 1024,
    without_landlock: bool = False,
    **columns: Any,
) -> list[float | None]:
    """1.0 for a program that passes all of its row's tests, else 0.0.

    With `partial`, the share of tests passed. None where a test itself cannot be run: such a
    prompt scores nothing. `seconds` and `memory_mb` bound each run of a program, `seconds` in
    time on the clock and on the CPU.

    Raises:
        HookError: the column is missing or holds no tests; this machine cannot confine programs.
    """
    rows = columns.get(column)
    if rows is None:
        raise HookError(f"code_reward needs a column `{column}`; name another in kwargs: `column`")
    _check_limits(seconds=seconds, memory_mb=memory_mb)
    limits = SandboxLimits(
        seconds=seconds,
        cpu_seconds=seconds,
        memory_mb=memory_mb,
        without_landlock=without_landlock,
    )
    points = entry_point or [None] * len(completions)
    jobs = [
        _reward(
            program_in(after_reasoning(text_of(c)) or ""),
            tests_of(row, column),
            point,
            limits,
            partial=partial,
        )
        for c, row, point in zip(completions, rows, points, strict=True)
    ]
    return list(await asyncio.gather(*jobs))


def _check_limits(**limits: object) -> None:
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise HookError(f"code_reward: {name}: got {limit!r}, expected a number above 0")


async def _reward(
    program: str | None,
    tests: Tests,
    entry_point: str | None,
    limits: SandboxLimits,
    *,
    partial: bool,
) -> float | None:
    if program is None:
        return 0.0
    sandbox = _sandbox(without_landlock=limits.without_landlock)
    if isinstance(tests, Asserts):
        verdicts = await sandbox.judge(program, tests.tests, entry_point, limits)
        impossible = next((v for v in verdicts if v.startswith(UNSUPPORTED)), None)
        if impossible is not None:
            log.warning("code_reward: a test cannot be run apart from the program: %s", impossible)
            return None
        passed, most = verdicts.count(PASSED), len(tests.tests)
    else:
        runs = await sandbox.run(program, tests.inputs, limits)
        passed, most = 0, len(tests.inputs)
        for run, wanted in zip(runs, tests.outputs, strict=True):
            passed += run.status == OK and _lines(run.stdout) == _lines(wanted)
    return passed / most if partial else float(passed == most)


def tests_of(value: object, column: str) -> Tests:
    """A row's tests.

    Raises:
        HookError: it has none, or they are of no known form.
    """
    if isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
        with contextlib.suppress(ValueError):  # a Python text that begins with a bracket
            value = json.loads(value)
    if isinstance(value, str) and value.strip():
        return _asserts((value,), column)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        inputs, outputs = _texts(fields.get("inputs")), _texts(fields.get("outputs"))
        if inputs and len(inputs) == len(outputs):
            return Runs(inputs, outputs)
    elif isinstance(value, (list, tuple)) and value:
        entries = cast("Sequence[Any]", value)
        if all(isinstance(entry, str) for entry in entries):
            return _asserts(tuple(entries), column)
        if all(isinstance(entry, Mapping) and {"input", "output"} <= {*entry} for entry in entries):
            return Runs(
                tuple(_text(entry["input"]) for entry in entries),
                tuple(_text(entry["output"]) for entry in entries),
            )
    raise HookError(
        f"code_reward: the column `{column}` holds {value!r:.80}; expected Python tests (a text, "
        "or a list of them), or pairs of `input` and `output`"
    )


def _asserts(tests: tuple[str, ...], column: str) -> Tests:
    """Tests, checked to be Python: no program could pass others, and nobody would notice."""
    for test in tests:
        try:
            with warnings.catch_warnings(action="ignore"):  # about escapes in a test's strings
                compile(test, "<test>", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise HookError(
                f"code_reward: the column `{column}` holds {test!r:.80}, which is not Python: "
                f"{error}"
            ) from error
    return Asserts(tests)


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(_text(value) for value in cast("Sequence[object]", values))


def _text(value: object) -> str:
    """An input or output; some datasets give it as a list of lines."""
    if isinstance(value, list):
        return "\n".join(str(line) for line in cast("list[object]", value))
    return str(value)


def _lines(text: str) -> list[str]:
    """The part of an output that counts: its lines, without the spaces at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


_sandboxes: dict[tuple[asyncio.AbstractEventLoop, bool], Sandbox] = {}


def _sandbox(*, without_landlock: bool) -> Sandbox:
    """The sandbox of this event loop; rewards share one loop."""
    key = (asyncio.get_running_loop(), without_landlock)
    if key not in _sandboxes:
        _sandboxes[key] = Sandbox(without_landlock=without_landlock)
    return _sandboxes[key]
