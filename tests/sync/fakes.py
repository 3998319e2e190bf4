"""A server in memory: records calls, keeps adapters, fails or lies when told."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from asyncgrpo.errors import ServerError
from asyncgrpo.server.api import ServedModel
from asyncgrpo.server.failures import StatusError
from asyncgrpo.server.load import ServerLoad

TOKENS = np.array([3, 1, 4, 1, 5], np.int32)


def logprobs_for(value: float) -> np.ndarray:
    """Logprobs of the probe under weights of `value`: values give different ones."""
    return np.array([0.0, -1.0, -2.0, -3.0, -4.0], np.float32) - np.float32(value)


class FakeServer:
    """A server whose weights are one number: `w` of an adapter or a weight folder."""

    def __init__(self, base_url: str = "http://replica-0") -> None:
        self.base_url = base_url
        self.calls: list[str] = []
        self.adapters: dict[str, str] = {}
        self.values: dict[str, float] = {"base": 0.0}  # by served name
        self.in_use: set[str] = set()  # adapters with requests
        self.paused = False
        self.version: int | None = None
        self.tells_version = True  # False: a vLLM before 0.32
        self.closed = False
        self.fail: dict[str, list[ServerError]] = {}  # by method, one failure per call
        self.ignored: Counter[str] = Counter()  # by method, how many calls to answer and ignore
        self.on_call: Callable[[str], None] = lambda _name: None
        self.gate: asyncio.Event | None = None  # loading waits for it

    def _called(self, method: str, detail: object = "") -> None:
        self.calls.append(f"{method} {detail}".strip())
        self.on_call(method)
        if self.fail.get(method):
            raise self.fail[method].pop(0)

    def _ignores(self, method: str) -> bool:
        self.ignored[method] -= 1
        return self.ignored[method] >= 0

    async def aclose(self) -> None:
        self.closed = True

    async def load_adapter(self, name: str, path: str) -> None:
        self._called("load", name)
        assert (Path(path) / "adapter_config.json").is_file()
        self.adapters[name] = path
        tensors = load_file(Path(path) / "adapter_model.safetensors")
        self.values[name] = 0.0 if self._ignores("load") else float(tensors["w"])

    async def unload_adapter(self, name: str) -> None:
        self._called("unload", name)
        if name not in self.adapters:
            raise StatusError(f"{name} cannot be found", 404)
        del self.adapters[name], self.values[name]

    async def models(self) -> tuple[ServedModel, ...]:
        served = self.adapters.items()
        return (ServedModel("base"), *(ServedModel(name, root) for name, root in served))

    async def load(self) -> ServerLoad:
        return ServerLoad(0.0, 0, 0, 0, 0, 0, 0, adapters_in_use=frozenset(self.in_use))

    async def pause(self, mode: str = "keep") -> None:
        self._called("pause", mode)
        self.paused = True

    async def resume(self) -> None:
        self._called("resume")
        self.paused = False

    async def start_weight_update(self) -> None:
        self._called("start")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        self._called("update", Path(info["path"]).name)
        assert self.paused
        if not self._ignores("update"):
            tensors = load_file(Path(info["path"]) / "model.safetensors")
            self.values["base"] = float(tensors["w"])

    async def finish_weight_update(self, version: int) -> None:
        self._called("finish", version)
        self.version = version

    async def weight_version(self) -> str | None:
        if not self.tells_version:
            return None
        return "default" if self.version is None else str(self.version)

    async def prompt_logprobs(self, policy: str, token_ids: np.ndarray) -> np.ndarray:
        self._called("score", policy)
        assert not self.paused
        return logprobs_for(self.values[policy])
