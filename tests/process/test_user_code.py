"""Errors of the user's code, with the line where they arose."""

import json
from pathlib import Path

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.process.user_code import describe_hook_error, hook_error, locate_error
from asyncgrpo.rewards import gsm8k_reward
from asyncgrpo.rollout.hooks.threads import in_daemon_thread, on_hook_loop

HERE = "test_user_code.py"


def divides(by):
    return 1 / by


def parses(text):
    return json.loads(text)


async def awaits(by):
    return divides(by)


def stops(_):
    raise StopIteration


def exits(_):
    raise SystemExit(3)


def caught(call, *args):
    with pytest.raises(Exception) as told:
        call(*args)
    return told.value


def line_of(function, text):
    lines = Path(__file__).read_text().splitlines()
    start = function.__code__.co_firstlineno
    return next(i for i in range(start, len(lines)) if text in lines[i]) + 1


def test_the_last_line_of_the_users_code_is_told(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    error = caught(divides, 0)
    place = f"{HERE}:{line_of(divides, '1 / by')} in divides"
    assert locate_error(error) == place
    assert describe_hook_error(error) == f"ZeroDivisionError: division by zero ({place})"
    told = hook_error("reward `divides` raised", error)
    assert isinstance(told, HookError)
    assert str(told) == f"reward `divides` raised ZeroDivisionError: division by zero ({place})"
    assert told.cause == f"reward `divides` raised ZeroDivisionError at {place}"


def test_a_file_elsewhere_is_told_by_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert locate_error(caught(divides, 0)).startswith(f"{HERE}:")


def test_what_a_library_raises_is_told_where_the_user_called_it():
    told = str(locate_error(caught(parses, "{")))
    assert f"{HERE}:{line_of(parses, 'json.loads')} in parses" in told


async def test_threads_and_coroutines_keep_the_place():
    for calls in (
        lambda: in_daemon_thread(divides, 0),
        lambda: on_hook_loop(awaits(0)),
    ):
        with pytest.raises(ZeroDivisionError) as told:
            await calls()
        assert locate_error(told.value).endswith("in divides")


@pytest.mark.parametrize("call", [stops, exits])
async def test_an_error_that_ends_no_process_keeps_its_place(call):
    with pytest.raises(RuntimeError) as told:
        await in_daemon_thread(call, 1)
    assert locate_error(told.value).endswith(f"in {call.__name__}")


def test_an_error_of_our_own_code_has_no_place_there():
    completion = [{"role": "assistant", "content": "3"}]
    error = caught(lambda: gsm8k_reward([completion], answer=["no marks"]))
    assert locate_error(error).endswith(
        "in test_an_error_of_our_own_code_has_no_place_there.<locals>.<lambda>"
    )
    assert locate_error(ValueError("never raised")) is None
    assert hook_error("it raised", ValueError("x")).cause == "it raised ValueError('x')"
