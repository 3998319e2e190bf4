"""The beginning of served names: one for a run, kept for its resume."""

import re

from asyncgrpo.sync.run_label import run_label


def test_a_resume_finds_the_label_and_another_run_gets_another(tmp_path):
    first = run_label(tmp_path / "a", "demo")
    assert re.fullmatch(r"demo-[0-9a-f]{6}", first)
    assert run_label(tmp_path / "a", "demo") == first
    assert run_label(tmp_path / "b", "demo") != first


def test_a_name_is_fit_for_a_server(tmp_path):
    assert re.fullmatch(r"my-run-1-[0-9a-f]{6}", run_label(tmp_path, "my run/1"))
