"""Asks math-verify from any thread; time limits hold, and groups share fairly.

    judge(questions of a group)  --> waiting groups --next answer of the group served least-->
                                 an idle math process, of MOST_PROCESSES  -->  verdicts

Processes take answers, not groups: a group whose answers use up their limits waits for those that
do not. A process that does not answer in time has ended itself (`math_process.py`); the answer
counts as wrong, and the next one gets a fresh process. What is left of a group at its deadline
counts as wrong too.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asyncgrpo.errors import HookError
from asyncgrpo.sandbox.child import Child
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.protocol import MATH_SECONDS

log = logging.getLogger(__name__)

MOST_PROCESSES = max(2, min(4, (os.cpu_count() or 1) // 2))  # one that hangs leaves another
GRACE_S = 2.0  # beyond the process's own limit
GROUP_SECONDS = 4 * MATH_SECONDS  # of judging, for all answers of a group together
DEADLINE_S = 40.0  # of a group with an answer that hung; below a reward's usual timeout of 60


@dataclass(frozen=True, slots=True)
class Question:
    """Does `answer` state the value of `gold`?"""

    gold: str
    answer: str
    number: float | None = None  # the gold answer, where it is a float


@dataclass(eq=False, slots=True)
class _Group:
    questions: Sequence[Question]
    deadline: float
    order: int
    waiting: deque[int] = field(default_factory=deque[int])
    verdicts: dict[int, bool | None] = field(default_factory=dict[int, bool | None])
    used_s: float = 0.0
    in_flight: int = 0
    has_hung: bool = False
    error: HookError | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or (not self.waiting and not self.in_flight)

    def turn(self) -> tuple[int, float, int]:
        """The order in which groups are served: the least served first."""
        return self.in_flight, self.used_s, self.order


class MathJudge:
    """A pool of math processes; every method may be called from any thread."""

    def __init__(
        self,
        most_processes: int = MOST_PROCESSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_processes = most_processes
        self._clock = clock
        self._changed = threading.Condition()
        self._groups: list[_Group] = []
        self._num_groups = 0
        self._num_threads = 0
        self._num_idle = 0
        self._children: set[Child] = set()
        self._is_closed = False

    def judge(self, questions: Sequence[Question]) -> list[bool | None]:
        """The verdicts on a group's answers: None where the gold answer has no value.

        Raises:
            HookError: math-verify does not start.
        """
        with self._changed:
            group = _Group(questions, self._clock() + DEADLINE_S, self._num_groups)
            group.waiting.extend(range(len(questions)))
            self._num_groups += 1
            self._groups.append(group)
            self._start_threads()
            self._changed.notify_all()
            while not group.is_done:
                left_s = group.deadline - self._clock()
                self._changed.wait(left_s if left_s > 0 else None)
                self._give_up_late()
            self._groups.remove(group)
        if group.error is not None:
            raise group.error
        return [group.verdicts.get(i, False) for i in range(len(questions))]

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._is_closed = True
            for group in self._groups:
                group.waiting.clear()
            children, self._children = self._children, set()
            self._changed.notify_all()
        for child in children:
            child.end()

    def _start_threads(self) -> None:
        waiting = sum(len(group.waiting) for group in self._groups)
        wanted = min(self._most_processes, self._num_threads - self._num_idle + waiting)
        while self._num_threads < wanted:
            self._num_threads += 1
            self._num_idle += 1
            threading.Thread(target=self._serve, daemon=True, name="math-judge").start()

    def _serve(self) -> None:
        """A process's thread: takes the next answer, gives its verdict."""
        child: Child | None = None
        while True:
            with self._changed:
                while (group := self._next_group()) is None and not self._is_closed:
                    self._changed.wait()
                if group is None:
                    self._num_threads -= 1
                    return
                index = group.waiting.popleft()
                group.in_flight += 1
                self._num_idle -= 1
            child, verdict, used_s, error = self._ask(child, group.questions[index])
            with self._changed:
                group.in_flight -= 1
                self._num_idle += 1
                group.used_s += used_s
                group.has_hung |= child is None
                group.error = group.error or error
                group.verdicts[index] = verdict
                self._give_up_late()
                self._changed.notify_all()

    def _next_group(self) -> _Group | None:
        waiting = [group for group in self._groups if group.waiting and group.error is None]
        return min(waiting, key=_Group.turn, default=None)

    def _ask(
        self, child: Child | None, question: Question
    ) -> tuple[Child | None, bool | None, float, HookError | None]:
        """The process (None of one that has ended), the verdict, its time, the error."""
        if child is None:
            try:
                child = Child("asyncgrpo.sandbox.math_process")
            except ClosedError:
                message = "accuracy_reward: math-verify does not start; is it installed?"
                return None, False, 0.0, HookError(message)
            with self._changed:
                self._children.add(child)
        start = self._clock()
        message = {"gold": question.gold, "answer": question.answer, "number": question.number}
        try:
            verdict = child.ask(message, MATH_SECONDS + GRACE_S)
        except (ClosedError, ValueError):  # ValueError: the judge has closed it meanwhile
            log.warning(
                "math-verify gave up on the answer %.80r: it counts as wrong", question.answer
            )
            with self._changed:
                self._children.discard(child)
            child.end()
            return None, False, self._clock() - start, None
        return child, verdict, self._clock() - start, None

    def _give_up_late(self) -> None:
        """Counts what waits of the groups that are over their time as wrong."""
        now = self._clock()
        for group in self._groups:
            is_late = group.has_hung and now >= group.deadline
            if group.waiting and (is_late or group.used_s >= GROUP_SECONDS):
                log.warning(
                    "math-verify took too long for the answers of a group: the %d that are left "
                    "count as wrong",
                    len(group.waiting),
                )
                group.waiting.clear()
