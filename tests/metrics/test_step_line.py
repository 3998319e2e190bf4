"""The line of a step, in the launcher's choice of columns and the trainer's."""

from asyncgrpo.metrics.catalog import describe
from asyncgrpo.metrics.step_line import COLUMNS, step_line

VALUES = {column.metric: 1.0 for column in COLUMNS}


def test_the_launcher_prints_the_columns_of_a_terminal():
    assert step_line(4, VALUES, max_steps=30) == (
        "step 4/30  reward 1.000  staleness 1.0  1 tokens/s  queue 1  ratio 1.0000  grad 1.000  "
        "took 1.0 s  waited 1.0 s"
    )


def test_the_trainer_logs_the_same_words_and_three_columns_more():
    logged = step_line(4, VALUES, log=True).split("  ")
    printed = step_line(4, VALUES).split("  ")
    assert [part for part in logged if part in printed] == printed
    assert set(logged) - set(printed) == {"loss +1.0000", "entropy 1.000", "samples 1"}


def test_what_a_window_did_not_measure_is_left_out():
    assert step_line(1, {"perf/step_s": 1.25}) == "step 1  took 1.2 s"


def test_a_step_whose_samples_were_all_scored_before_it_shows_their_own_reward():
    assert step_line(1, {"reward_trained": 0.25}) == "step 1  reward 0.250 of its samples"
    assert step_line(1, {"reward_trained": 0.25, "reward": 0.5}) == "step 1  reward 0.500"


def test_every_column_is_a_declared_metric():
    assert [column.metric for column in COLUMNS if describe(column.metric) is None] == []
