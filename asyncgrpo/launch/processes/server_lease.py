"""The run's lease on its servers: claimed before all else, renewed until the end.

    claim --granted--> renewed every RENEW_S ... --> released
          --another holds it--> has it renewed meanwhile?  yes: refused    no: claim again

Two runs on one server would replace each other's weights. A server without our middleware has no
lease, and is used as it is.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from asyncgrpo.errors import ServerError
from asyncgrpo.server.lease import LEASE_S, RENEW_S, Claim, Holder

ASK_AGAIN_S = 0.5
PATIENCE_S = LEASE_S + RENEW_S  # by then a lease that nobody renews has ended

Say = Callable[[str], None]


class LeaseClient(Protocol):
    """The part of `ServerClient` that is used here."""

    def claim(self, claim: Claim) -> Awaitable[Holder | None]: ...
    async def aclose(self) -> None: ...


# docs/decisions/0057
class ServerLease:
    """The claims of one attempt; given back when the context ends."""

    def __init__(self, name: str, connect: Callable[[str], LeaseClient], warn: Say) -> None:
        """`name` is shown to other runs, `connect` makes the client of a URL."""
        self._claim = Claim(uuid.uuid4().hex, name)
        self._connect = connect
        self._warn = warn
        self._clients: dict[str, LeaseClient] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await self._release()

    async def claim(self, url: str) -> None:
        """Returns once the server is this run's.

        Raises:
            ServerError: another run holds it, and lives.
        """
        client = self._connect(url)
        try:
            await self._until_granted(url, client)
        except BaseException:
            await client.aclose()
            raise
        self._clients[url] = client

    async def _until_granted(self, url: str, client: LeaseClient) -> None:
        begun, before = time.monotonic(), None
        while True:
            holder = await client.claim(self._claim)
            if holder is None or holder.owner == self._claim.owner:
                return
            if has_renewed(before, holder) or time.monotonic() - begun > PATIENCE_S:
                raise ServerError(
                    f"{url} is in use: the run {holder.name} trains with it, and renewed its claim "
                    f"{holder.renewed_s_ago:.0f} s ago. One server serves one run: wait for its "
                    "end, stop it, or start another server"
                )
            before = holder
            await asyncio.sleep(ASK_AGAIN_S)

    async def _renew(self) -> None:
        lost = set[str]()
        while True:
            await asyncio.sleep(RENEW_S)
            for url, client in list(self._clients.items()):
                with contextlib.suppress(ServerError):  # the worker and the trainer tell of it
                    holder = await client.claim(self._claim)
                    if holder and holder.owner != self._claim.owner and url not in lost:
                        lost.add(url)
                        self._warn(f"the run {holder.name} has taken {url} over: stop one of them")

    async def _release(self) -> None:
        claim = Claim(self._claim.owner, self._claim.name, release=True)
        for client in self._clients.values():
            with contextlib.suppress(ServerError, TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await client.claim(claim)
            await client.aclose()


def has_renewed(before: Holder | None, holder: Holder) -> bool:
    """True if a holder has renewed its claim since `before`, or is another."""
    if before is None:
        return False
    return holder.owner != before.owner or holder.renewed_s_ago < before.renewed_s_ago
