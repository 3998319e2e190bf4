"""The current policy: its served name and version.

Begin, Published --publish-->  CurrentPolicy  --first turn of a rollout-->  PolicyName

A name is current once it is served and attested, never before.
"""

import asyncio
from typing import NamedTuple


class PolicyName(NamedTuple):
    """A served name of the policy, and its version."""

    name: str
    version: int


# docs/decisions/0045
class CurrentPolicy:
    """The newest attested policy, and a way to wait for the next."""

    def __init__(self, now: PolicyName) -> None:
        self.now = now
        self._changed = asyncio.Event()

    def publish(self, policy: PolicyName) -> None:
        """`policy` is current from here on; an older one that arrives late is ignored."""
        if policy.version < self.now.version:
            return
        self.now = policy
        self._changed.set()
        self._changed = asyncio.Event()

    async def other_than(self, policy: PolicyName, *, timeout_s: float) -> PolicyName:
        """The current policy, once it is not `policy`; `policy` itself after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.now == policy:
                    await self._changed.wait()
        except TimeoutError:
            return policy
        return self.now
