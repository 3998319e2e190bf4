"""A served policy and trainers that come, die and come back, with the real vLLM on CPU.

One server serves every test here, as `asyncgrpo serve` in one terminal and `train` in another.
"""

import contextlib
import signal
import subprocess
from collections.abc import Callable

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
    """Two steps of two ranks with a server that another run left paused."""
    directory = RunDirectory(tmp_path_factory.mktemp("finished") / "run")
    httpx.post(f"{url}/pause?mode=keep", timeout=30).raise_for_status()
    overrides = ("trainer.max_steps=2", "trainer.nproc_per_node=2", "trainer.token_budget=512")
    run(*train(url, directory, *overrides))
    return directory


def test_a_run_uses_a_server_started_elsewhere(finished):
    assert [record["step"] for record in finished.metrics] == [1, 2]
    assert not list((finished.path / "logs" / "latest").glob("server*"))


def test_a_server_left_paused_by_a_killed_trainer_is_used_again(finished):
    assert finished.state["step"] == 2


def test_two_trainer_processes_share_a_run(finished):
    first = finished.metrics[0]
    assert first["batch/microbatches_per_step"] == 1
    assert first["batch/row_tokens_max"] <= 512 < first["batch/forwarded_tokens_per_step"]
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-3)


@contextlib.contextmanager
def started_until(ready: Callable[[], bool], *arguments: str):
    """A launcher whose run has come so far, and goes on."""
    with started(*arguments) as launcher:
        wait_until(lambda: ready() or launcher.poll() is not None, "the run to come so far")
        yield launcher


@pytest.fixture(scope="module")
def killed(url, tmp_path_factory) -> tuple[RunDirectory, str]:
    """A run whose trainer was killed after step 5; gives what was printed, too."""
    directory = RunDirectory(tmp_path_factory.mktemp("killed") / "run")
    command = train(url, directory, "trainer.max_steps=500")
    with started_until(lambda: len(directory.metrics) >= 5, *command) as launcher:
        process_titled("asyncgrpo: trainer", launcher.pid).kill()
        assert launcher.wait(180) == 1
        return directory, launcher.stdout.read()


def test_a_killed_trainer_resumes_at_the_first_unresolved_prompt_and_ctrl_c_checkpoints(killed):
    directory, output = killed
    assert "trainer" in output
    step, resolved = directory.state["step"], directory.resolved
    assert step >= 4
    assert step % 2 == 0  # a checkpoint's, saved in mid-run: save_steps is 2

    def four_steps_on() -> bool:
        return directory.state["step"] >= step + 4

    with started_until(four_steps_on, "resume", str(directory.path)) as launcher:
        with contextlib.suppress(ProcessLookupError):
            launcher.send_signal(signal.SIGINT)
        assert launcher.wait(180) == 0, launcher.stdout.read()

    last = directory.state["step"]
    assert last >= step + 4
    assert directory.checkpoint(last).is_dir()
    steps = [record["step"] for record in directory.metrics]
    assert steps[step - last :] == list(range(step + 1, last + 1))
    assert resolved < directory.resolved


def test_a_finished_run_says_so_and_trains_nothing(finished):
    output = run("resume", str(finished.path))
    assert "end" in output
    assert [record["step"] for record in finished.metrics] == [1, 2]


def test_ctrl_c_twice_stops_now_and_the_run_can_be_resumed(url, tmp_path):
    directory = RunDirectory(tmp_path / "run")
    command = train(url, directory, "trainer.max_steps=500")
    with started_until(lambda: len(directory.metrics) >= 3, *command) as launcher:
        family = descendants(launcher.pid)
        launcher.send_signal(signal.SIGINT)
        heard = next(line for line in launcher.stdout if "finishing the step" in line)
        assert "Ctrl-C again stops now" in heard
        launcher.send_signal(signal.SIGINT)
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
