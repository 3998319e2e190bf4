"""Folder sync: whole weights through a shared folder; works everywhere, CPU included.

    served/policy-v000012/   model.safetensors, manifest.json
        -> each replica: pause(keep) -> start -> update {path} -> finish(version) -> resume

A replica is paused only while it loads, requests under way go on with the new weights, and it is
resumed whatever happened. The receiving side is `server/folder_engine.py`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.server.weight_folder import write_manifest
from asyncgrpo.sync.backend import (
    Server,
    Timings,
    checked,
    on_each,
    published_versions,
    version_name,
)
from asyncgrpo.sync.files import remove_folder, write_folder

MAX_FILE_SIZE = "5GB"
# A server left paused hangs the whole run, so resuming is tried for some 7 s.
RESUME_WAITS_S = (0.0, 0.5, 1.0, 2.0, 4.0)
ALREADY_ACTIVE = "already active"  # vLLM's words for an update that was started and not finished


class FolderBackend:
    """Publishes whole weights to servers with `--weight-transfer-config '{"backend":"folder"}'`."""

    def __init__(self, served: Path, model_name: str, *, keep_versions: int) -> None:
        """Set up; nothing is written yet.

        Args:
            served: folder that trainer and servers see at the same path.
            model_name: what the servers call the model.
            keep_versions: newest versions whose files stay.
        """
        self._served = served.absolute()
        self._model_name = model_name
        self._keep_versions = keep_versions
        self._labels: dict[str, str] = {}  # by server: what this run published there last

    def policy_name(self, version: int) -> str:
        """The model's own name for every version; the server labels tokens with the version."""
        del version
        return self._model_name

    async def publish(
        self, version: int, tensors: Mapping[str, Tensor], servers: Sequence[Server]
    ) -> Timings:
        """Write the weights, then have every server load them."""
        started = time.monotonic()
        folder = self._folder(version)
        await asyncio.to_thread(
            write_folder, folder, lambda path: _write(path, tensors, version=version)
        )
        pauses = await on_each(servers, lambda server: self._load(server, version))
        return Timings(pause_s=max(pauses), transfer_s=time.monotonic() - started)

    async def reload(self, version: int, server: Server) -> None:
        """Load the same folder again."""
        await self._load(server, version)

    async def prune(self, version: int, servers: Sequence[Server]) -> None:
        """Delete all but the newest versions' files; servers hold the weights in memory."""
        del servers
        older = [known for known in published_versions(self._served) if known <= version]
        for old in older[: -self._keep_versions]:
            await asyncio.to_thread(remove_folder, self._folder(old))

    async def retire(self, servers: Sequence[Server]) -> None:
        """Leaves the last weights in place: the next run replaces them."""
        del servers

    def _folder(self, version: int) -> Path:
        return self._served / version_name(version)

    async def _load(self, server: Server, version: int) -> float:
        """Load into one server; returns the seconds it was paused."""
        await self._check_untouched(server, version)
        started = time.monotonic()
        try:
            await self._load_while_paused(server, version)
        except SyncError as error:
            try:
                await _resume(server)
            except SyncError as left_paused:
                raise SyncError(f"{error}\n{left_paused}") from error
            raise
        except BaseException:
            await _resume(server)
            raise
        await _resume(server)
        return time.monotonic() - started

    async def _load_while_paused(self, server: Server, version: int) -> None:
        await checked(server.pause("keep"), server, version, "pause")
        try:
            await checked(server.start_weight_update(), server, version, "start_weight_update")
        except SyncError as error:
            # Left open by a trainer that died in mid-sync: starting does nothing in our engine,
            # so the update may as well go on.
            if ALREADY_ACTIVE not in str(error):
                raise
        path = str(self._folder(version))
        info = {"path": path, "version": version}
        await checked(server.update_weights(info), server, version, f"update_weights from {path}")
        await checked(server.finish_weight_update(version), server, version, "finish_weight_update")
        self._labels[server.base_url] = str(version)

    async def _check_untouched(self, server: Server, version: int) -> None:
        """Another run's weights, or a restarted server's, were sampled from and nobody knew."""
        ours = self._labels.get(server.base_url)
        if ours is None:
            return
        found = await checked(server.weight_version(), server, version, "weight_info")
        if found is not None and found != ours:
            raise SyncError(
                f"{server.base_url} serves weights labelled {found!r}, and this run published "
                f"{ours!r} last: the server was restarted, or another run publishes to it. Give "
                f"each run a server of its own, then `asyncgrpo resume`"
            )


async def _resume(server: Server) -> None:
    failure: ServerError | None = None
    for wait_s in RESUME_WAITS_S:
        await asyncio.sleep(wait_s)
        try:
            await server.resume()
        except ServerError as error:
            failure = error
        else:
            return
    raise SyncError(f"{server.base_url} is left paused: resume failed: {failure}; restart it")


def _write(folder: Path, tensors: Mapping[str, Tensor], *, version: int) -> None:
    shards = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=MAX_FILE_SIZE)
    for file_name, names in shards.filename_to_tensors.items():
        file_tensors = {name: tensors[name] for name in names}
        save_file(file_tensors, folder / file_name, metadata={"format": "pt"})
    write_manifest(folder, version=version)
