"""The staleness allowance: a case by hand, then laws for every stream of events."""

import math

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rollout.limits.admission import Admission


def finish(admission, tokens):
    for count in tokens:
        admission.finish_rollout(count)


def test_one_group_runs_at_a_time_until_the_first_finished():
    admission = Admission(allowance_tokens=10**6)
    assert admission.may_start()
    admission.start_group(2)
    assert not admission.may_start()
    finish(admission, [10, 30])
    assert not admission.may_start()  # its rollouts ended, but it is not scored yet
    admission.close_group(finished_tokens=40, offered_tokens=40)
    assert admission.may_start()
    admission.start_group(2)
    assert admission.may_start()  # from here on the allowance alone decides


def test_held_tokens_by_hand():
    admission = Admission(allowance_tokens=100)
    admission.start_group(2)
    finish(admission, [10, 30])
    admission.close_group(finished_tokens=40, offered_tokens=40)
    assert admission.held_tokens == 40
    admission.start_group(2)  # two unfinished rollouts at the mean of 20
    assert admission.held_tokens == 80
    assert admission.may_start()
    admission.finish_rollout(50)  # the mean is 30 now: 40 queued + 50 finished + 30 estimated
    assert admission.held_tokens == 120
    assert not admission.may_start()
    admission.on_progress(allowance_tokens=100, consumed_tokens=40)
    assert admission.held_tokens == 80
    assert admission.may_start()


def test_the_limit_itself_is_used_up():
    admission = Admission(allowance_tokens=40)
    admission.start_group(1)
    admission.finish_rollout(40)
    admission.close_group(finished_tokens=40, offered_tokens=40)
    assert admission.is_used_up()
    assert not admission.may_start()


def test_a_first_group_that_failed_says_nothing_about_the_mean():
    admission = Admission(allowance_tokens=100)
    admission.start_group(2)
    admission.lose_rollout()
    admission.lose_rollout()
    admission.close_group(finished_tokens=0, offered_tokens=0)
    assert admission.may_start()
    admission.start_group(2)
    assert not admission.may_start()


groups = st.lists(
    st.tuples(
        st.lists(st.one_of(st.none(), st.integers(1, 500)), min_size=1, max_size=8),  # None = lost
        st.booleans(),  # offered, or dropped
    ),
    max_size=30,
)


@given(groups, st.integers(1, 2000))
def test_when_nothing_is_in_flight_the_tokens_held_are_those_queued(stream, allowance):
    admission, queued = Admission(allowance), 0
    for rollouts, offered in stream:
        admission.start_group(len(rollouts))
        for tokens in rollouts:
            if tokens is None:
                admission.lose_rollout()
            else:
                admission.finish_rollout(tokens)
        total = sum(tokens or 0 for tokens in rollouts)
        admission.close_group(finished_tokens=total, offered_tokens=total * offered)
        queued += total * offered
    assert admission.held_tokens == queued
    admission.on_progress(allowance_tokens=allowance, consumed_tokens=queued)
    assert admission.held_tokens == 0
    assert admission.may_start()


@given(groups, st.integers(1, 2000), st.data())
def test_queue_and_flight_never_pass_the_allowance_by_more_than_a_group(stream, allowance, data):
    """Rollouts of equal length, so that the estimate is exact."""
    tokens, size = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 8))
    admission, open_groups, queued = Admission(allowance), 0, 0
    for _, starts in stream:
        if starts and admission.may_start():
            admission.start_group(size)
            open_groups += 1
        elif open_groups:
            finish(admission, [tokens] * size)
            admission.close_group(finished_tokens=tokens * size, offered_tokens=tokens * size)
            open_groups -= 1
            queued += tokens * size
        assert queued + open_groups * tokens * size < allowance + tokens * size


@given(
    st.integers(1, 4),  # max_staleness
    st.integers(1, 6),  # rollouts of a group
    st.floats(0.1, 30.0),  # seconds of a group
    st.floats(0.5, 20.0),  # seconds of a step
)
def test_nothing_is_trained_later_than_its_staleness_allows(staleness, size, group_s, step_s):
    """A worker and a trainer on a simulated clock, for 40 steps.

    A step uses 60 tokens, or waits for them; after it the allowance is what the step used, times
    the staleness. Rollouts have 10 tokens. Four groups can be under way at once.
    """
    step_tokens = 60
    admission = Admission(allowance_tokens=staleness * step_tokens)
    now, step_ends, steps = 0.0, 0.0, 0
    running: list[tuple[float, int]] = []  # when a group ends, the step at which it started
    queue: list[int] = []  # the step at which each sample's group started
    consumed, late = 0, []
    while steps < 40:
        while admission.may_start() and len(running) < 4:
            admission.start_group(size)
            running.append((now + group_s, steps))
        ends = min(running)[0] if running else math.inf
        if ends <= step_ends or len(queue) * 10 < step_tokens:
            assert running, "the worker may not start, and the trainer has too little for a step"
            now, started = min(running)
            running.remove(min(running))
            finish(admission, [10] * size)
            admission.close_group(finished_tokens=10 * size, offered_tokens=10 * size)
            queue += [started] * size
            step_ends = max(step_ends, now)
        else:
            now, steps = max(now, step_ends), steps + 1
            used, queue = queue[: step_tokens // 10], queue[step_tokens // 10 :]
            late += [steps - 1 - started for started in used]
            consumed += step_tokens
            admission.on_progress(
                allowance_tokens=staleness * step_tokens, consumed_tokens=consumed
            )
            step_ends = now + step_s
    # One group may pass the allowance, and a step may leave a part of one behind.
    assert max(late) <= staleness + 1
