"""Two runs with one seed learn alike, to the last bit."""

from tests.same_curve import curve, fingerprint


def test_a_run_that_is_repeated_has_the_same_curve():
    first, second = curve(4), curve(4)
    assert [window["step"] for window in first] == [1, 2, 3, 4]
    assert first == second
    assert len({window["loss"] for window in first}) == 4
    assert fingerprint(first) == fingerprint(second) != fingerprint(first[:3])
