"""Facts about the machine, found without importing anything heavy."""

import sys
from pathlib import Path

import pytest

from asyncgrpo.errors import ServerError
from asyncgrpo.launch.machine import free_port, is_free, vllm_knows


@pytest.fixture(name="interpreter")
def _interpreter(tmp_path: Path) -> str:
    """A Python that has a vLLM of two fields."""
    config = tmp_path / "vllm" / "config"
    config.mkdir(parents=True)
    (config.parent / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    (config / "model.py").write_text("class ModelConfig:\n    model: str\n    max_logprobs: int\n")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -P "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_vllm_knows_the_fields_of_its_model_configuration(interpreter: str):
    assert vllm_knows(interpreter, "max_logprobs")
    assert not vllm_knows(interpreter, "return_sampling_mask")
    assert not vllm_knows(interpreter, "model:")


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_host_of_another_machine_is_told_at_once(host: str):
    """Each of its ten thousand ports would ask for the name again."""
    with pytest.raises(ServerError, match=f"server.host: `{host}` is no address"):
        free_port(host)


def test_a_free_port_is_none_of_those_taken():
    taken = [free_port("127.0.0.1") for _ in range(3)]
    assert free_port("127.0.0.1", taken) not in taken
    assert is_free("127.0.0.1", taken[0])


def test_without_vllm_or_an_interpreter_nothing_is_known(tmp_path: Path):
    assert not vllm_knows(str(tmp_path / "nowhere"), "model")
    assert not vllm_knows("false", "model")


@pytest.mark.vllm
def test_the_installed_vllm_can_list_sampling_masks():
    assert vllm_knows(None, "return_sampling_mask")
