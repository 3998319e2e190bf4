"""A served policy and trainers that come, die and come back, with the real vLLM on CPU.

One server serves every test here, as `asyncgrpo serve` in one terminal and `train` in another.
"""

import contextlib
import subprocess

import httpx
import psutil
import pytest

from asyncgrpo.launch.machine import free_port
from tests.end_to_end.runs import (
    RECIPE,
    RunDirectory,
    answers,
    asyncgrpo,
    descendants,
    process_titled,
    run,
    started,
    wait_until,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def url():
    port = free_port("127.0.0.1")
    address = f"http://127.0.0.1:{port}"
    with started("serve", str(RECIPE), f"server.port={port}") as server:
        wait_until(lambda: answers(address) or server.poll() is not None, "the server")
        assert server.poll() is None, server.stdout.read()
        yield address


def train(url: str, directory: RunDirectory, *overrides: str) -> tuple[str, ...]:
    return ("train", str(RECIPE), f"run.dir={directory.path}", f"server.urls=[{url}]", *overrides)


@pytest.fixture(scope="module")
def finished(url, tmp_path_factory) -> RunDirectory:
    """Two steps with a server that another run left paused."""
    directory = RunDirectory(tmp_path_factory.mktemp("finished") / "run")
    httpx.post(f"{url}/pause?mode=keep", timeout=30).raise_for_status()
    run(*train(url, directory, "trainer.max_steps=2"))
    return directory


def test_a_run_uses_a_server_started_elsewhere(finished):
    assert [record["step"] for record in finished.metrics] == [1, 2]
    assert not list((finished.path / "logs" / "latest").glob("server*"))


def test_a_server_left_paused_by_a_killed_trainer_is_used_again(finished):
    assert finished.state["step"] == 2


def test_two_trainer_processes_share_a_run(url, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    overrides = ("trainer.max_steps=2", "trainer.nproc_per_node=2", "trainer.token_budget=512")
    run(*train(url, directory, *overrides))
    first = directory.metrics[0]
    assert first["batch/microbatches_per_step"] == 1
    assert first["batch/row_tokens_max"] <= 512 < first["batch/forwarded_tokens_per_step"]
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-3)


def test_a_killed_trainer_resumes_at_the_first_unresolved_prompt(url, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with started(*train(url, directory, "trainer.max_steps=500")) as launcher:
        wait_until(lambda: len(directory.metrics) >= 5 or launcher.poll() is not None, "step 5")
        process_titled("asyncgrpo: trainer", launcher.pid).kill()
        assert launcher.wait(180) == 1
        output = launcher.stdout.read()
    assert "trainer" in output
    step, resolved = directory.state["step"], directory.resolved
    assert step >= 4
    assert step % 2 == 0  # a checkpoint's, saved in mid-run: save_steps is 2

    run("resume", str(directory.path), f"trainer.max_steps={step + 4}")

    assert directory.state["step"] == step + 4
    steps = [record["step"] for record in directory.metrics]
    assert steps[-4:] == list(range(step + 1, step + 5))
    assert resolved < directory.resolved


def test_a_finished_run_says_so_and_trains_nothing(finished):
    output = run("resume", str(finished.path))
    assert "end" in output
    assert [record["step"] for record in finished.metrics] == [1, 2]


def test_ctrl_c_checkpoints_and_exits_cleanly(url, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with started(*train(url, directory, "trainer.max_steps=500")) as launcher:
        wait_until(lambda: len(directory.metrics) >= 3 or launcher.poll() is not None, "step 3")
        with contextlib.suppress(ProcessLookupError):
            launcher.send_signal(2)
        assert launcher.wait(180) == 0, launcher.stdout.read()
    step = directory.state["step"]
    assert step >= 3
    assert directory.checkpoint(step).is_dir()


def test_ctrl_c_twice_stops_now_and_the_run_can_be_resumed(url, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with started(*train(url, directory, "trainer.max_steps=500")) as launcher:
        wait_until(lambda: len(directory.metrics) >= 3 or launcher.poll() is not None, "step 3")
        family = descendants(launcher.pid)
        launcher.send_signal(2)
        heard = next(line for line in launcher.stdout if "finishing the step" in line)
        assert "Ctrl-C again stops now" in heard
        launcher.send_signal(2)
        output = launcher.stdout.read()
        assert launcher.wait(60) in {0, 1}  # 0: the step was over before the second one came
    assert f"asyncgrpo resume {directory.path}" in output
    assert not psutil.wait_procs(family, timeout=20)[1]


def test_a_second_train_into_the_same_directory_is_refused(url, finished):
    again = subprocess.run(
        asyncgrpo(*train(url, finished)), capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert "resume" in again.stderr
