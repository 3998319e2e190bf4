"""Tools as users write them, good and bad, named by import path in tests."""

import asyncio
import threading
import time

THREADS: set[str] = set()
may_go_on = threading.Event()


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    THREADS.add(threading.current_thread().name)
    return a + b


async def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first.
        b: The second.
    """
    THREADS.add(threading.current_thread().name)
    await asyncio.sleep(0)
    return a * b


def divide(a: int, b: int) -> float:
    """Divide two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a / b


def describe(city: str) -> dict:
    """Say what is known of a city.

    Args:
        city: Its name.
    """
    return {"city": city, "people": 7, "known": True}


def ends_the_process() -> None:
    """Try to end the worker."""
    raise SystemExit(3)


def hangs() -> None:
    """Never return."""
    time.sleep(3600)


async def hangs_async() -> None:
    """Never return."""
    await asyncio.sleep(3600)


async def blocks_its_loop() -> None:
    """Keep the loop it runs on from doing anything else for a while."""
    may_go_on.wait(20)  # as a careless tool does


def slow() -> str:
    """Take a while."""
    time.sleep(0.3)
    return "done"


def dumps() -> str:
    """Return megabytes."""
    return "All there is, line by line.\n" * 1_000_000


def without_hint(a, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def without_docstring(a: int) -> int:
    return a


def without_description(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
    """
    return a + b


def with_keywords(**numbers: int) -> int:
    """Add integers.

    Args:
        numbers: What to add.
    """
    return sum(numbers.values())


def with_an_unknown_type(a: "NoSuchType") -> None:  # pyright: ignore[reportUndefinedVariable]  # on purpose
    """Do something.

    Args:
        a: What with.
    """


def yields(a: int):
    """Count.

    Args:
        a: How far.
    """
    yield from range(a)


async def yields_async(a: int):
    """Count.

    Args:
        a: How far.
    """
    yield a


async def ends_the_loop() -> None:
    """Try to end the loop of all asynchronous tools."""
    raise SystemExit(3)


def calls(call: str, function: str) -> str:
    """Have parameters whose names others have as well.

    Args:
        call: One.
        function: Another.
    """
    return call + function


def half_a_pair() -> str:
    """Return what is no text: half of a surrogate pair."""
    return "a\ud800b"


def of_itself() -> list:
    """Return what JSON cannot hold."""
    endless = []
    endless.append(endless)
    return endless


class SilentError(Exception):
    """An error that fails when it is asked what it says."""

    def __str__(self):
        raise ValueError("no words")


def says_nothing() -> None:
    """Raise what cannot be printed."""
    raise SilentError


NOT_A_TOOL = 3
