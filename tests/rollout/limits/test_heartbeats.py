"""The oldest heartbeat of the loops at work, on a simulated clock."""

from asyncgrpo.rollout.limits.heartbeats import Heartbeats


def test_the_oldest_counts_and_a_loop_that_waits_for_others_does_not():
    now = 0.0
    heartbeats = Heartbeats(clock=lambda: now)
    assert heartbeats.oldest().oldest_s == 0
    heartbeats.beat("a")
    now = 5.0
    heartbeats.beat("b")
    now = 7.0
    assert (heartbeats.oldest().loop, heartbeats.oldest().oldest_s) == ("a", 7.0)
    with heartbeats.resting("a"):
        assert (heartbeats.oldest().loop, heartbeats.oldest().oldest_s) == ("b", 2.0)
    assert heartbeats.oldest().loop == "b"  # a beat when it woke
    heartbeats.rest("b")
    assert (heartbeats.oldest().loop, heartbeats.oldest().oldest_s) == ("a", 0.0)
