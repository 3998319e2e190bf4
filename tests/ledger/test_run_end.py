"""The end of a run is counted in steps, or in prompts."""

from asyncgrpo.ledger.run_end import end_ordinal


def test_epochs_may_be_fractions():
    assert end_ordinal(1.5, 10) == 15
    assert end_ordinal(0.01, 10) == 1
