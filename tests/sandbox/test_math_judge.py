"""MathJudge: nothing that it reads can hang it, and no group holds up another."""

import threading

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox import math_judge
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.math_judge import DEADLINE_S, GROUP_SECONDS, MathJudge, Question
from asyncgrpo.sandbox.protocol import MATH_SECONDS

HANGS = r"\boxed{9^{9^{9^{9}}}+%d}"


@pytest.fixture
def judge():
    made = MathJudge(most_processes=1)
    yield made
    made.close()


def ask(judge, gold, answer):
    (verdict,) = judge.judge([Question(gold, answer)])
    return verdict


def test_an_answer_that_would_hang_sympy_counts_as_wrong_and_the_next_is_judged(judge):
    assert ask(judge, "5", HANGS % 1) is False
    assert ask(judge, "$x$", r"\boxed{x}") is True


def test_a_process_serves_the_next_request_too(judge):
    assert judge.judge([]) == []
    assert ask(judge, "$x$", r"\boxed{x}") is True
    first = set(judge._children)
    assert ask(judge, "$x$", r"\boxed{y}") is False
    assert judge._children == first
    assert len(first) == 1


def test_an_answer_of_a_megabyte_is_read(judge):
    assert ask(judge, "$x$", "x" * (1 << 20) + r" \boxed{x}") is True


def test_a_process_that_was_killed_is_replaced(judge):
    ask(judge, "$x$", r"\boxed{x}")
    (process,) = judge._children
    process._process.kill()
    assert ask(judge, "$x$", r"\boxed{x}") is False  # nobody can tell why it ended
    assert ask(judge, "$x$", r"\boxed{x}") is True


def test_no_process_is_left_after_close(judge):
    ask(judge, "$x$", r"\boxed{x}")
    (process,) = judge._children
    judge.close()
    assert not process.is_alive


def test_without_math_verify_it_says_so(monkeypatch, judge):
    def fails(module):
        raise ClosedError

    monkeypatch.setattr(math_judge, "Child", fails)
    with pytest.raises(HookError, match="math-verify does not start; is it installed"):
        ask(judge, "$x$", r"\boxed{x}")


def test_twenty_easy_groups_do_not_wait_for_one_whose_answers_all_hang():
    """The group of sixteen comes first, and holds every process as the others come."""
    judge = MathJudge(most_processes=2)
    hanging = [Question("5", HANGS % i) for i in range(16)]
    easy = [Question("$x+1$", r"\boxed{1+x}"), Question("$x+1$", r"\boxed{x}")] * 2
    verdicts = {}

    def score(name, questions):
        verdicts[name] = judge.judge(questions)

    slow = threading.Thread(target=score, args=("slow", hanging), daemon=True)
    slow.start()
    with judge._changed:
        judge._changed.wait_for(lambda: any(group.in_flight for group in judge._groups))
        (group,) = judge._groups
    threads = [threading.Thread(target=score, args=(i, easy)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: [True, False, True, False] for i in range(20)}
    # In the order of arrival it would be all sixteen but those in work.
    assert len(group.verdicts) < 16 - 2
    judge.close()
    slow.join()
    assert verdicts["slow"] == [False] * 16


# The order of answers, without processes: one of them, a clock that only it moves


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Script:
    """Stands for the math process: each answer says what it costs, or that it hangs."""

    def __init__(self, monkeypatch, groups):
        self.clock = Clock()
        self.judge = MathJudge(most_processes=1, clock=self.clock)
        self.asked = []
        self.num_groups = len(groups)
        monkeypatch.setattr(math_judge, "Child", lambda module: self)
        self.verdicts = {}
        threads = [threading.Thread(target=self.score, args=(n, g)) for n, g in groups.items()]
        gate = threading.Thread(target=self.judge.judge, args=([Question("", "gate")],))
        gate.start()
        for i, thread in enumerate(threads):  # in order: each after the one before is known
            thread.start()
            self.until(lambda i=i: self.judge._num_groups == i + 2)
        for thread in [gate, *threads]:
            thread.join()
        self.judge.close()

    def until(self, condition):
        with self.judge._changed:
            self.judge._changed.wait_for(condition)

    def score(self, name, answers):
        self.verdicts[name] = self.judge.judge([Question(name, answer) for answer in answers])

    def ask(self, message, timeout_s):
        if message["answer"] == "gate":
            self.until(lambda: self.judge._num_groups == self.num_groups + 1)
            return True
        self.asked.append(message["gold"])
        if message["answer"] == "hangs":
            self.clock.now += MATH_SECONDS
            raise ClosedError
        self.clock.now += float(message["answer"])
        return True

    def end(self):
        pass


def test_the_group_that_was_served_least_comes_next(monkeypatch):
    script = Script(monkeypatch, {"a": ["1"] * 4, "b": ["2"] * 3, "c": ["0.5"] * 3})
    assert script.asked == ["a", "b", "c", "c", "a", "c", "a", "b", "a", "b"]
    assert script.verdicts == {"a": [True] * 4, "b": [True] * 3, "c": [True] * 3}


def test_a_hanging_answer_sends_its_group_to_the_end(monkeypatch):
    groups = {"slow": ["hangs"] * 16} | {f"easy{i}": ["0.01"] * 16 for i in range(20)}
    script = Script(monkeypatch, groups)
    assert script.asked.index("slow") == 0
    assert set(script.asked[1 : 1 + 320]) == {f"easy{i}" for i in range(20)}
    assert all(verdicts == [True] * 16 for n, verdicts in script.verdicts.items() if n != "slow")


def test_what_is_left_when_a_group_has_used_its_time_counts_as_wrong(monkeypatch, caplog):
    script = Script(monkeypatch, {"slow": ["0.1", *["hangs"] * 16]})
    assert script.verdicts == {"slow": [True] + [False] * 16}
    assert len(script.asked) == 1 + GROUP_SECONDS / MATH_SECONDS
    assert "the 12 that are left count as wrong" in caplog.text


def test_a_group_that_hung_once_ends_at_its_deadline(monkeypatch, caplog):
    busy = [str(DEADLINE_S / 10)] * 4  # less judging than a group may use
    groups = {"slow": ["hangs", "0.1"]} | {f"busy{i}": busy for i in range(8)}
    script = Script(monkeypatch, groups)
    assert script.verdicts.pop("slow") == [False, False]
    assert all(verdicts == [True] * 4 for verdicts in script.verdicts.values())
    assert "the 1 that are left count as wrong" in caplog.text
