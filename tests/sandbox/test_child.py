"""A child process: it starts or says why not, answers in time, and ends for good."""

import time
from pathlib import Path

import pytest

from asyncgrpo.sandbox.child import Child
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.protocol import READY

MODULE = "tests.sandbox.child_module"


@pytest.fixture
def child():
    made = Child(MODULE, READY)
    yield made
    made.end()


def test_it_answers_one_message_after_the_other(child):
    assert child.ask({"a": [1]}, 60.0) == {"a": [1]}
    assert child.ask("again", 60.0) == "again"
    assert child.is_alive


@pytest.mark.parametrize("request_", ["end", "garble"])
def test_one_that_ended_or_sends_no_message_is_closed(child, request_):
    with pytest.raises(ClosedError):
        child.ask(request_, 60.0)


def test_one_that_is_late_is_closed_at_the_time(child):
    start = time.monotonic()
    with pytest.raises(ClosedError):
        child.ask("sleep", 0.2)
    assert time.monotonic() - start > 0.1
    child.end()
    assert not child.is_alive


def test_its_reason_not_to_serve_is_the_errors_text():
    with pytest.raises(ClosedError, match=r"^no such luck$"):
        Child(MODULE, "no such luck")


def test_one_that_ends_before_it_is_ready_has_ended():
    with pytest.raises(ClosedError, match=r"^the process has ended$"):
        Child(MODULE, "")


def test_an_isolated_one_has_a_folder_until_its_end():
    child = Child("asyncgrpo.sandbox.launcher", "without_landlock", isolated=True)
    assert child.folder is not None
    folder = Path(child.folder)
    assert folder.is_dir()
    child.end()
    child.end()  # a second time does no harm
    assert not folder.exists()
