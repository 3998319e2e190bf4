"""The plugin's `register`: harmless in every process, and only a name left behind."""

import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points
from types import ModuleType

import pytest

from asyncgrpo.server import vllm_plugin
from asyncgrpo.server.vllm_plugin import BACKEND, ENGINE_CLASS, ENGINE_MODULE, register
from tests import warm

FACTORY = "vllm.distributed.weight_transfer.factory"


class Factory:
    def __init__(self, failure: Exception | None = None) -> None:
        self.registered = []
        self._failure = failure

    def register_engine(self, *arguments) -> None:
        if self._failure is not None:
            raise self._failure
        if arguments in self.registered:
            raise ValueError("already registered")
        self.registered.append(arguments)


def provide(monkeypatch, factory) -> None:
    """Stand in for vLLM, or for a vLLM that lacks the factory (None)."""
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType(FACTORY)
    if factory is not None:
        monkeypatch.setattr(module, "WeightTransferEngineFactory", factory, raising=False)
    monkeypatch.setitem(sys.modules, FACTORY, module)


def test_vllm_finds_it_by_its_entry_point():
    (found,) = entry_points(group="vllm.general_plugins", name="asyncgrpo")
    assert found.load() is register


def test_it_registers_names_alone_and_may_be_called_again(monkeypatch):
    factory = Factory()
    provide(monkeypatch, factory)
    register()
    register()
    assert factory.registered == [(BACKEND, ENGINE_MODULE, ENGINE_CLASS)]


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(None, id="a vLLM without weight transfer"),
        pytest.param(Factory(TypeError("another signature")), id="a factory that changed"),
    ],
)
def test_it_keeps_no_server_from_starting(monkeypatch, factory):
    provide(monkeypatch, factory)
    register()


def test_a_factory_that_changed_is_logged(monkeypatch, caplog):
    provide(monkeypatch, Factory(TypeError("another signature")))
    monkeypatch.setattr(vllm_plugin._log, "handlers", [caplog.handler])  # vLLM's do not propagate
    register()
    assert "another signature" in caplog.text


def test_importing_the_plugin_imports_neither_torch_nor_vllm():
    code = (
        f"import sys, {vllm_plugin.__name__}; "
        "sys.exit(bool({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


@pytest.mark.vllm
def test_the_real_factory_resolves_the_engine():
    program = "tests.server.registered_engine"
    process = warm.vllm().start(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = process.communicate(timeout=600)
    assert said.split()[-1:] == [ENGINE_CLASS], errors[-2000:]


def test_the_names_left_behind_are_those_of_a_module_that_exists():
    assert importlib.util.find_spec(ENGINE_MODULE) is not None
