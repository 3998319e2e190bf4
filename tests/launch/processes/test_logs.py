"""Last words: of vLLM while it starts, of a process that failed."""

from pathlib import Path

import pytest

from asyncgrpo.launch.processes import logs
from asyncgrpo.process.log_format import LOST_RANK


def test_what_vllm_is_doing_is_its_last_message_without_the_prefix():
    lines = [
        "(APIServer pid=8) INFO 11-30 10:50:11 [api_server.py:123] vLLM API server version 0.32",
        "(EngineCore pid=9) INFO 11-30 10:50:12 [cpu_runner.py:7] Loading weights took 0.02 s",
        "(EngineCore pid=9)   ",
        "----------",
    ]
    assert logs.progress(lines) == "Loading weights took 0.02 s"
    assert logs.progress([]) == ""


def test_routes_banners_and_warnings_are_no_progress():
    lines = [
        "(APIServer pid=7) INFO 11-30 10:50:09 [entry.py:140] Starting vLLM server",
        "(APIServer pid=7) INFO 11-30 10:50:10 [api_utils.py:347]   █▄█▀  model  tiny",
        "(APIServer pid=7) INFO 11-30 10:50:11 [launcher.py:195] Route: /docs, Methods: GET",
        "(APIServer pid=7) WARNING 11-30 10:50:12 [vllm.py:725] using the V1 model runner",
        "  warnings.warn(",
    ]
    assert logs.progress(lines) == "Starting vLLM server"
    assert logs.progress(lines[3:]) == "warnings.warn("


def test_a_trainers_words_are_not_hidden_by_torchruns_account():
    lines = [
        "Traceback (most recent call last):",
        "RuntimeError: the loss is made of cheese",
        "E1130 10:00:00.1 123 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "=====",
    ]
    assert logs.failure(lines)[-1] == "RuntimeError: the loss is made of cheese"


def test_a_rank_that_was_killed_is_named():
    lines = [
        "2026-11-30 10:00:00,1 INFO asyncgrpo.training.trainer: step 3",
        "E1130 10:00:00.1 123 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode",
        "Root Cause (first observed failure):",
        "  exitcode  : -9 (pid: 18414)  (SIGKILL)",
        "  traceback : Signal 9 (SIGKILL) received by PID 18414",
        "=====",
    ]
    assert logs.failure(lines) == [lines[0], "its process 18414 was ended by SIGKILL"]


def test_ranks_that_torchrun_ended_do_not_hide_the_message_of_the_first():
    lines = [
        "2026-11-30 10:00:00,1 ERROR __main__: a checkpoint is damaged",
        "E1130 10:00:00.1 123 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode",
        "  traceback : Signal 15 (SIGTERM) received by PID 18415",
    ]
    assert logs.failure(lines) == ["a checkpoint is damaged"]


GONE = f"2026-11-30 10:00:02,1 ERROR __main__: {LOST_RANK} (Connection closed by peer); the first"


def test_a_rank_that_lost_its_peer_does_not_hide_the_peers_words():
    own = "2026-11-30 10:00:01,1 ERROR __main__: a loss is not finite"
    assert logs.failure([own, "  in step 3", GONE]) == ["a loss is not finite", "  in step 3"]
    assert logs.failure([GONE, own]) == ["a loss is not finite"]
    crash = ["Traceback (most recent call last):", "RuntimeError: the loss is made of cheese"]
    assert logs.failure([*crash, GONE]) == crash
    assert logs.failure([GONE]) == [GONE.partition("__main__: ")[2]]  # its peer said nothing


@pytest.mark.parametrize("name", ["asyncgrpo.rollout.worker", "__main__"])  # __main__: of -m
def test_a_message_for_the_user_is_given_alone(name: str):
    lines = [
        "2026-11-30 10:00:00,1 INFO asyncgrpo.rollout.worker_loops: 512 rollouts at once",
        f"2026-11-30 10:00:01,1 ERROR {name}: row 3: `prompt` is missing",
        "  expected a list of messages",
    ]
    assert logs.failure(lines) == ["row 3: `prompt` is missing", lines[2]]


def test_what_libraries_say_in_parting_does_not_hide_the_end():
    lines = [
        "(APIServer pid=8) ERROR 11-30 12:40:02 [async_llm.py:906] EngineDeadError: EngineCore",
        "nanobind: leaked 514 functions!",
        *[' - leaked function "f"'] * 30,
        " - ... skipped remainder",
        "lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: leaked",
    ]
    assert logs.failure(lines) == lines[:1]


def test_the_root_cause_of_a_server_that_did_not_start_comes_first():
    lines = [
        "(EngineCore pid=9) ERROR 11-30 10:50:12 [core.py:1] ValueError: head size 16",
        *[f"(APIServer pid=8)   File frame {i}" for i in range(30)],
        "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert logs.failure(lines)[0].endswith("ValueError: head size 16")


def test_the_tail_of_a_file_is_whole_lines(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    lines = logs.tail(path, limit=100)
    assert lines[-1] == "line 999"
    assert all(line.startswith("line ") for line in lines)
    assert logs.tail(tmp_path / "missing") == []


def test_a_progress_bar_counts_as_what_it_shows_last(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text("loading 10%\rloading 90%\rloading 100%\n\x1b[1mbold\x1b[0m\n")
    assert logs.tail(path) == ["loading 100%", "bold"]
