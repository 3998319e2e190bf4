"""MathJudge: nothing that it reads can hang it, and its processes are used again."""

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox import math_judge
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.math_judge import MathJudge


@pytest.fixture
def judge():
    made = MathJudge(most_processes=1)
    yield made
    made.close()


def test_an_answer_that_would_hang_sympy_counts_as_wrong_and_the_next_is_judged(judge):
    assert judge.is_correct("$x$", r"\boxed{9^{9^{9^{9}}}}") is False
    assert judge.is_correct("$x$", r"\boxed{x}") is True


def test_a_process_serves_the_next_request_too(judge):
    assert judge.is_correct("$x$", r"\boxed{x}") is True
    (first,) = judge._idle
    assert judge.is_correct("$x$", r"\boxed{y}") is False
    assert judge._idle == [first]


def test_an_answer_of_a_megabyte_is_read(judge):
    assert judge.is_correct("$x$", "x" * (1 << 20) + r" \boxed{x}") is True


def test_a_process_that_was_killed_is_replaced(judge):
    judge.is_correct("$x$", r"\boxed{x}")
    (process,) = judge._idle
    process._process.kill()
    assert judge.is_correct("$x$", r"\boxed{x}") is False  # nobody can tell why it ended
    assert judge.is_correct("$x$", r"\boxed{x}") is True


def test_no_process_is_left_after_close(judge):
    judge.is_correct("$x$", r"\boxed{x}")
    (process,) = judge._idle
    judge.close()
    assert not process.is_alive


def test_without_math_verify_it_says_so(monkeypatch, judge):
    def fails(module):
        raise ClosedError

    monkeypatch.setattr(math_judge, "Child", fails)
    with pytest.raises(HookError, match="math-verify does not start; is it installed"):
        judge.is_correct("$x$", r"\boxed{x}")
