"""The worker as a process, from a run directory to its exit code."""

import os
import signal
import subprocess
import time

import psutil
import pytest

from asyncgrpo.channel.messages import Begin, Exhausted, Failed, GroupReady, Hello, Stop
from asyncgrpo.channel.sockets import TrainerLink
from asyncgrpo.config import write_resolved
from tests import warm
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout import chat_fakes
from tests.rollout.fakes import config, tokenizer, write_prompts

HOOKS = "tests.rollout.user_hooks"
START_S = 300.0  # importing transformers and datasets on a busy machine
END_S = 60.0


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


@pytest.fixture
def run_dir(tmp_path):
    tokenizer().save_pretrained(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", 6)
    return tmp_path


def prepare(run_dir, server, reward, server_section=None, **sections):
    if server_section:
        sections["server"] = server_section
    sections = {"model": {"name_or_path": str(run_dir / "model")}, **sections}
    cfg = config(str(run_dir / "prompts.jsonl"), server.url, [reward], **sections)
    write_resolved(run_dir / "config.json", cfg)


def start(run_dir, *arguments):
    program = "asyncgrpo.rollout.worker"
    return warm.ours().start(program, str(run_dir), *arguments, stderr=subprocess.PIPE)


def hear(link, kind, *, within=START_S):
    """Messages up to the first of `kind`."""
    heard, deadline = [], time.monotonic() + within
    while time.monotonic() < deadline:
        received = link.receive(0.1)
        if received is not None:
            heard.append(received)
            if isinstance(received[1], kind):
                return heard
    raise AssertionError(f"no {kind.__name__} within {within} s; heard {heard}")


@pytest.fixture
def link(run_dir):
    opened = TrainerLink(run_dir)
    yield opened
    opened.close()


def test_a_run_over_the_real_link(run_dir, server, link):
    prepare(run_dir, server, f"{HOOKS}:number_of_threes")
    process = start(run_dir)
    worker, hello = hear(link, Hello)[-1]
    assert hello.num_prompts == 6
    assert hello.pid == process.pid
    assert psutil.Process(process.pid).cmdline()[0].startswith("asyncgrpo: worker")
    assert psutil.Process(process.pid).environ().get("CUDA_VISIBLE_DEVICES", "") == ""
    link.send(worker, Begin("fake", 0, 0, (), 10**9, 6))
    heard = [message for _, message in hear(link, Exhausted)]
    assert any(isinstance(message, GroupReady) for message in heard)
    link.send(worker, Stop())
    link.receive(0.1)  # the receiver also sends
    assert process.wait(END_S) == 0
    process.stderr.close()


def test_a_mistake_in_the_recipe_is_one_message_to_the_trainer_and_the_log(run_dir, server, link):
    prepare(run_dir, server, f"{HOOKS}:needs_ground_truth")
    process = start(run_dir)
    _, failed = hear(link, Failed)[-1]
    assert "needs `ground_truth`" in failed.message
    _, stderr = process.communicate(timeout=END_S)
    assert process.returncode == 1
    assert failed.message in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("reward", ["hangs", "counts_in_native_code"])
def test_a_hung_reward_neither_keeps_the_process_alive_nor_aborts_it(run_dir, server, link, reward):
    source = {"path": f"{HOOKS}:{reward}", "timeout_s": 0.1 if reward == "hangs" else 2.0}
    prepare(run_dir, server, source, rollout={"failure_budget": 0.0})
    process = start(run_dir)
    worker, _ = hear(link, Hello)[-1]
    link.send(worker, Begin("fake", 0, 0, (), 10**9, None))
    _, failed = hear(link, Failed)[-1]
    assert f"took longer than its timeout_s of {source['timeout_s']:g}" in failed.message
    process.communicate(timeout=END_S)
    assert process.returncode == 1


def test_a_hung_tool_does_not_keep_the_process_alive(run_dir, server, link):
    chat_fakes.tokenizer().save_pretrained(run_dir / "model")
    server.state.script = lambda *_: chat_fakes.says(chat_fakes.call("hangs"))
    server.state.vocab_size, server.state.max_model_len = 320, 2048
    rollout = {
        "tools": ("tests.rollout.tool_functions:hangs",),
        "tool_timeout_s": 0.1,
        "failure_budget": 0.0,
        "max_completion_length": 100,
    }
    reward, context = f"{HOOKS}:random_reward", {"max_model_len": 2048}
    prepare(run_dir, server, reward, rollout=rollout, server_section=context)
    process = start(run_dir)
    worker, _ = hear(link, Hello)[-1]
    link.send(worker, Begin("fake", 0, 0, (), 10**9, None))
    _, failed = hear(link, Failed)[-1]
    assert "tool `hangs` took longer than rollout.tool_timeout_s = 0.1" in failed.message
    process.communicate(timeout=END_S)
    assert process.returncode == 1


def test_stacks_are_written_to_the_log_on_request(run_dir, server, link):
    prepare(run_dir, server, f"{HOOKS}:number_of_threes")
    process = start(run_dir)
    hear(link, Hello)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=END_S)
    assert process.returncode == 0
    assert "Current thread" in stderr
    assert "worker.py" in stderr


def test_sigterm_is_a_clean_end(run_dir, server, link):
    prepare(run_dir, server, f"{HOOKS}:number_of_threes")
    process = start(run_dir)
    hear(link, Hello)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=END_S)
    assert process.returncode == 0
