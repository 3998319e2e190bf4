"""The log of a process: its progress, and the reason of its end.

Pure but for `tail`, which reads the end of a file.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from asyncgrpo.process.log_format import ERROR_START, LOST_RANK

TAIL_BYTES = 64 * 1024
FAILURE_LINES = 15

# "(EngineCore pid=7) INFO 11-30 10:50:11 [runner.py:123] Loading weights" -> the message
VLLM_PREFIX = re.compile(r"^(\([^)]*\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:.]+ \[[^]]*\] ?")
VLLM_NAME = re.compile(r"^\([^)]*\) ")
BANNER = re.compile(r"[▀-▟]|launcher\.py:\d+\] Route: ")  # block letters; a line per route
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# torchrun ends its log with an account of its own processes, which hides the trainer's own error.
TORCHRUN_EPILOGUE = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/")
# torchrun's line about a process that a signal ended.
# It ends the other ranks with SIGTERM, so that signal is no cause.
SIGNALLED = re.compile(r"traceback : Signal \d+ \((?!SIGTERM)(SIG\w+)\) received by PID (\d+)")
# Lines that libraries log at every end of a process, whatever its cause.
PARTING = re.compile(r"nanobind: |^ - (leaked|\.\.\. skipped) |resource_tracker")
OUR_MESSAGE = re.compile(rf"^(error: |\S+\.py: error: |{ERROR_START}(asyncgrpo|__main__))")
TIMESTAMP = re.compile(rf"^{ERROR_START}\S+: ")
# The last line of vLLM's server only says that the engine failed; the engine's error is far above.
POINTS_ABOVE = "See root cause above"
ROOT_CAUSE = re.compile(r"\b[A-Z]\w*(Error|Exception): ")


def tail(path: Path, limit: int = TAIL_BYTES) -> list[str]:
    """The last whole lines of a file, at most `limit` bytes.

    Empty where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    whole = text.rstrip("\n").split("\n") if text else []
    lines = [ANSI.sub("", line.rstrip("\r").rsplit("\r", 1)[-1]) for line in whole]
    return lines[1:] if size > limit else lines


def progress(lines: Sequence[str]) -> str:
    """The last message of level INFO, else the last line."""
    last = ""
    for line in reversed(lines):
        prefix = VLLM_PREFIX.match(line)
        message = VLLM_NAME.sub("", VLLM_PREFIX.sub("", line)).strip()
        if not any(character.isalpha() for character in message):
            continue
        if prefix is not None and prefix[2] == "INFO" and not BANNER.search(line):
            return message
        last = last or message
    return last


def failure(lines: Sequence[str]) -> list[str]:
    """The lines about why a process ended: our own message, else the last lines."""
    end = next((i for i, line in enumerate(lines) if TORCHRUN_EPILOGUE.match(line)), len(lines))
    kept = [line for line in lines[:end] if line.strip() and not PARTING.search(line)]
    if signalled := next(filter(None, map(SIGNALLED.search, reversed(lines[end:]))), None):
        kept = kept[-FAILURE_LINES + 1 :]
        return [*kept, f"its process {signalled[2]} was ended by {signalled[1]}"]
    # A rank that lost its peer is not the one that failed.
    kept = [line for line in kept if f": {LOST_RANK} (" not in line] or kept
    for start in range(len(kept) - 1, -1, -1):
        if OUR_MESSAGE.match(kept[start]):
            first = TIMESTAMP.sub("", kept[start])
            return [first, *kept[start + 1 :]][:FAILURE_LINES]
    return _root_cause(kept) + kept[-FAILURE_LINES:]


def _root_cause(kept: Sequence[str]) -> list[str]:
    """The earlier line that the last lines refer to, if they do."""
    if not kept or not any(POINTS_ABOVE in line for line in kept[-FAILURE_LINES:]):
        return []
    earlier = kept[:-FAILURE_LINES]
    return [line for line in earlier if ROOT_CAUSE.search(line) and POINTS_ABOVE not in line][-1:]
