"""The interfaces of a publish: its servers, and the way weights reach them.

    Publisher  --publish, reload, prune-->  SyncBackend (adapter | folder)  --calls-->  Server

`server.client.ServerClient` is a Server. A backend is stateless towards the thread it runs in:
all its methods run in the publisher's event loop, one publish at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Float32, Int32
from torch import Tensor

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.server.api import ServedModel
from asyncgrpo.server.load import ServerLoad

T = TypeVar("T")

POLICY_PREFIX = "policy-v"


def version_name(version: int) -> str:
    """The name of version 12, as a served adapter and as a folder: policy-v000012."""
    return f"{POLICY_PREFIX}{version:06d}"


def published_versions(served: Path) -> list[int]:
    """The versions whose folders stand in `served`, oldest first; unfinished ones do not count."""
    numbers = (path.name.removeprefix(POLICY_PREFIX) for path in served.glob(f"{POLICY_PREFIX}*"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def next_version(served: Path, at_least: int = 0) -> int:
    """The first version of a resumed run: above all that a server may have seen.

    A server that outlived the trainer has cached prefixes under the old names, so a name is
    never given to other weights.
    """
    return max([at_least, *(version + 1 for version in published_versions(served))])


class Server(Protocol):
    """The calls of sync to a replica; each raises a `ServerError` when refused."""

    base_url: str

    async def aclose(self) -> None: ...
    async def load_adapter(self, name: str, path: str) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def models(self) -> tuple[ServedModel, ...]: ...
    async def load(self) -> ServerLoad: ...
    async def pause(self, mode: str = "keep") -> None: ...
    async def resume(self) -> None: ...
    async def start_weight_update(self) -> None: ...
    async def update_weights(self, info: Mapping[str, Any]) -> None: ...
    async def finish_weight_update(self, version: int) -> None: ...
    async def weight_version(self) -> str | None: ...
    async def prompt_logprobs(
        self, policy: str, token_ids: Int32[np.ndarray, "n"]
    ) -> Float32[np.ndarray, "n"]: ...


@dataclass(frozen=True)
class Timings:
    """Of one publish, of the slowest replica."""

    pause_s: float  # a replica generated nothing
    transfer_s: float  # writing and loading


class SyncBackend(Protocol):
    """One way of bringing weights to servers. Methods raise `SyncError`."""

    def policy_name(self, version: int) -> str:
        """The name to ask a server for, to get `version`."""
        ...

    async def publish(
        self, version: int, tensors: Mapping[str, Tensor], servers: Sequence[Server]
    ) -> Timings:
        """Make every server serve `version`."""
        ...

    async def reload(self, version: int, server: Server) -> None:
        """Have one server load `version` once more."""
        ...

    async def prune(self, version: int, servers: Sequence[Server]) -> None:
        """Forget what nobody needs any more, now that every server serves `version`."""
        ...

    async def retire(self, servers: Sequence[Server]) -> None:
        """Unloads what this run has loaded beside the model; the run ends."""
        ...


async def on_each(servers: Sequence[Server], act: Callable[[Server], Awaitable[T]]) -> list[T]:
    """Act on all servers side by side, and wait for all whatever happens to one.

    Raises:
        SyncError: the first server's failure, or one that lists several.
    """
    results = await asyncio.gather(*(act(server) for server in servers), return_exceptions=True)
    done = [result for result in results if not isinstance(result, BaseException)]
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, SyncError) or len(failures) == 1:
            raise failure
    if failures:
        raise SyncError("\n".join(str(failure) for failure in failures))
    return done


async def checked(call: Awaitable[T], server: Server, version: int, stage: str) -> T:
    """Await a call to `server`; its failure is told with the replica, version and stage."""
    try:
        return await call
    except ServerError as error:
        raise SyncError(
            f"publishing version {version} to {server.base_url} failed at {stage}: {error}"
        ) from error
