"""The failure budget over a sliding window."""

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.ledger.failure_budget import FailureBudget


def test_one_failure_more_than_the_budget_ends_the_run_with_the_commonest_reason():
    failures = FailureBudget(0.3, window=10, failed="groups could not be scored")
    for reason in ("a", "b", "b"):
        failures.fail(reason)
        assert failures.exceeded() is None
    failures.succeed()
    failures.fail("c")
    message = failures.exceeded()
    assert message is not None
    assert message.startswith(
        "stopped: 4 of the last 5 groups could not be scored (at most 30 % of 10 may fail: "
        "rollout.failure_budget)."
    )
    assert message.endswith("2 times: b")


def test_failures_leave_with_the_window():
    failures = FailureBudget(0.3, window=10)
    for _ in range(3):
        failures.fail("a")
    for _ in range(10):
        failures.succeed()
    for _ in range(3):
        failures.fail("a")
    assert failures.exceeded() is None


def test_a_budget_of_zero_bears_none_and_of_one_bears_all():
    strict, lenient = FailureBudget(0.0), FailureBudget(1.0)
    strict.fail("a")
    assert strict.exceeded()
    for _ in range(1000):
        lenient.fail("a")
    assert lenient.exceeded() is None


@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=60), st.integers(1, 12))
def test_it_counts_what_a_list_would(outcomes, window):
    failures = FailureBudget(0.5, window=window)
    for outcome in outcomes:
        failures.succeed() if outcome is None else failures.fail(outcome)
    last = outcomes[-window:]
    assert failures.failures == sum(outcome is not None for outcome in last)
    assert bool(failures.exceeded()) == (failures.failures > 0.5 * window)


def test_numbers_do_not_make_another_cause_and_the_last_message_is_shown():
    failures = FailureBudget(0.0)
    assert failures.fail("row 3: the prompt has 1,200 tokens")
    assert not failures.fail("row 17: the prompt has 90 tokens")
    assert "2 times: row 17: the prompt has 90 tokens" in str(failures.exceeded())


def test_a_cause_that_is_given_counts_whatever_the_message_says():
    failures = FailureBudget(0.0)
    assert failures.fail("reward `a` raised KeyError: 'x'", "KeyError at reward.py:45")
    assert not failures.fail("reward `a` raised KeyError: 'y'", "KeyError at reward.py:45")
    assert failures.fail("reward `a` raised KeyError: 'y'", "KeyError at reward.py:50 in b")
    assert "The commonest reason, 2 times" in str(failures.exceeded())


def test_a_cause_that_left_the_window_is_new_again():
    failures = FailureBudget(1.0, window=2)
    assert failures.fail("a")
    failures.succeed()
    failures.succeed()
    assert failures.fail("a")
