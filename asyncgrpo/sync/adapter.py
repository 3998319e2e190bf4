"""Adapter sync: every version of a LoRA adapter is served, under its own name.

    served/policy-v000012/   adapter_config.json, adapter_model.safetensors
        -> every replica loads it as demo-4f1c09-v000012 -> the worker asks for that name

The name carries the run: a server that serves one run after the other knows each adapter by
another name. A run unloads what it loaded when it ends, and nothing else. What a killed run left
loaded, its resume unloads with the other old versions.

Nothing pauses: rollouts under way finish under the name they started with. An old version is
unloaded once the newest is everywhere and nothing is in flight under the old name, and its files
go last, as a server may read them again whenever it needs an adapter it evicted.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.server.failures import StatusError
from asyncgrpo.sync.backend import (
    Server,
    Timings,
    checked,
    on_each,
    published_versions,
    version_name,
)
from asyncgrpo.sync.files import remove_folder, write_folder
from asyncgrpo.sync.tensors import ADAPTER_FILE

NOT_FOUND = 404


def _nothing_in_flight(_name: str) -> bool:
    return False


class AdapterBackend:
    """Publishes adapters to servers started with --enable-lora."""

    def __init__(
        self,
        served: Path,
        adapter_config: Mapping[str, Any],
        *,
        label: str,
        keep_versions: int,
        in_flight: Callable[[str], bool] = _nothing_in_flight,
    ) -> None:
        """Set up; nothing is written yet.

        Args:
            served: folder that trainer and servers see at the same path.
            adapter_config: content of adapter_config.json (`tensors.adapter_config`).
            label: of the run; begins the served names (`run_label`).
            keep_versions: newest versions left loaded: max_staleness + 1, so that a version is
                unloaded only when its rollouts would be dropped as stale.
            in_flight: whether a request under this name may still come, beyond those that the
                servers report. Called in the publisher's thread.
        """
        self._served = served.absolute()
        self._adapter_config = dict(adapter_config)
        self._keep_versions = keep_versions
        self._in_flight = in_flight
        self._label = label

    def policy_name(self, version: int) -> str:
        """One name always means one set of weights: demo-4f1c09-v000012."""
        return f"{self._label}-v{version:06d}"

    async def publish(
        self, version: int, tensors: Mapping[str, Tensor], servers: Sequence[Server]
    ) -> Timings:
        """Write the adapter and load it everywhere; on a failure it is unloaded everywhere."""
        started = time.monotonic()
        folder = self._folder(version)
        if folder.exists():  # an earlier attempt's, perhaps still loaded under this name
            await on_each(servers, lambda server: self._unload(server, version))
        await asyncio.to_thread(write_folder, folder, lambda path: self._write(path, tensors))
        try:
            await on_each(servers, lambda server: self._load(server, version))
        except SyncError:
            with suppress(SyncError):
                await on_each(servers, lambda server: self._unload(server, version))
            raise
        return Timings(pause_s=0.0, transfer_s=time.monotonic() - started)

    async def reload(self, version: int, server: Server) -> None:
        """Unload and load again, as a loaded name is not read a second time."""
        await self._unload(server, version)
        await self._load(server, version)

    async def prune(self, version: int, servers: Sequence[Server]) -> None:
        """Unload and delete all but the newest versions, oldest first, but none in flight."""
        known = [known for known in published_versions(self._served) if known <= version]
        older = known[: -self._keep_versions]
        in_use = await self._in_use(servers) if older else frozenset[str]()
        for old in older:
            name = self.policy_name(old)
            if name in in_use or self._in_flight(name):
                continue
            await on_each(servers, lambda server, old=old: self._unload(server, old))
            await asyncio.to_thread(remove_folder, self._folder(old))

    async def retire(self, servers: Sequence[Server]) -> None:
        """Unloads all versions of this run; the files stay."""
        for version in published_versions(self._served):
            await on_each(servers, lambda server, version=version: self._unload(server, version))

    async def _in_use(self, servers: Sequence[Server]) -> frozenset[str]:
        try:
            loads = [await server.load() for server in servers]
        except ServerError as error:
            raise SyncError(f"no old version can be unloaded: {error}") from error
        return frozenset[str]().union(*(load.adapters_in_use for load in loads))

    def _folder(self, version: int) -> Path:
        return self._served / version_name(version)

    def _write(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        save_file(dict(tensors), folder / ADAPTER_FILE, metadata={"format": "pt"})
        config = json.dumps(self._adapter_config, indent=2, sort_keys=True)
        (folder / "adapter_config.json").write_text(config)

    async def _load(self, server: Server, version: int) -> None:
        name, path = self.policy_name(version), str(self._folder(version))
        await checked(server.load_adapter(name, path), server, version, "loading the adapter")
        try:
            roots = {model.name: model.root for model in await server.models()}
        except ServerError as error:
            raise SyncError(f"{server.base_url} does not list its models: {error}") from error
        if roots.get(name) != path:
            raise SyncError(
                f"{server.base_url} accepted {name!r} but serves it from {roots.get(name)}, "
                f"expected {path}: it ignored the load"
            )

    async def _unload(self, server: Server, version: int) -> None:
        try:
            await server.unload_adapter(self.policy_name(version))
        except StatusError as error:
            if error.status != NOT_FOUND:
                raise SyncError(f"unloading version {version} failed: {error}") from error
        except ServerError as error:
            raise SyncError(f"unloading version {version} failed: {error}") from error
