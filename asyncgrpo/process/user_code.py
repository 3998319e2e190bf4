"""Errors of the user's own code, told with the line where they arose.

    ValueError  --hook_error-->  reward `judged` raised ValueError: ... (reward.py:45 in judged)

The package itself, the standard library and installed libraries are not the user's code.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from asyncgrpo.errors import HookError, describe_error


def locate_error(error: BaseException) -> str | None:
    """The last line of the user's own code that an exception passed; None without one.

    Such as `reward.py:45 in judged`. Neither this package nor an installed library counts.
    """
    frames = [*own_frames(error.__traceback__)]
    if not frames:
        return None
    frame, line = frames[-1]
    code = frame.f_code
    return f"{_shown_path(code.co_filename)}:{line} in {code.co_qualname}"


def describe_hook_error(error: BaseException) -> str:
    """The text of an exception of the user's code, with the place where it arose."""
    place = locate_error(error)
    return f"{describe_error(error)} ({place})" if place else describe_error(error)


def hook_error(what: str, error: BaseException, *, about: str = "") -> HookError:
    """The error for a hook that raised.

    `what` says which, such as "reward `judged` raised"; `about` what it was called for.
    """
    place = locate_error(error)
    cause = f"{what} {type(error).__name__} at {place}" if place else f"{what} {error!r:.200}"
    about = f"; {about}" if about else ""
    return HookError(f"{what} {describe_hook_error(error)}{about}", cause=cause)


def own_frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames of the user's code that an exception passed, outermost first, with their lines."""
    while traceback is not None:
        if _is_own(traceback.tb_frame.f_code.co_filename):
            yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_own(file: str) -> bool:
    """True for a file of the user's: of no library, and not of this package."""
    if file.startswith("<"):  # a string that was executed, a frozen module
        return False
    path = Path(file)
    return not any(path.is_relative_to(folder) for folder in _FOREIGN) and (
        "site-packages" not in path.parts
    )


def _shown_path(file: str) -> str:
    """The path below the working directory, else the name alone."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


_FOREIGN = (
    Path(__file__).parents[1],
    *(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")),
)
