"""The lease of a server: one run at a time, which renews its claim.

    POST /asyncgrpo/lease   {"owner": ID, "name": "demo"}                       claims, or renews
                            {"owner": ID, "name": "demo", "release": true}      gives back
    answer                  {"owner": ID, "name": "demo", "renewed_s_ago": 0.0} of who holds it now

A run that was killed renews nothing, and the next one gets the lease after `LEASE_S`. The state is
in the server's memory: it is seen from every machine, and gone with the server.
"""

from dataclasses import dataclass

import msgspec

PATH = "/asyncgrpo/lease"
LEASE_S = 20.0
RENEW_S = 4.0  # a few may come late or be lost


class Claim(msgspec.Struct, frozen=True):
    """A request for the lease."""

    owner: str  # one for each start of a run
    name: str  # shown to others
    release: bool = False


class Holder(msgspec.Struct, frozen=True):
    """The run that holds the lease; an empty owner is none."""

    owner: str = ""
    name: str = ""
    renewed_s_ago: float = 0.0


@dataclass(slots=True)
class Lease:
    """The lease of one server, kept in its process. The time comes from outside."""

    _owner: str = ""
    _name: str = ""
    _renewed_at: float = 0.0

    def answer(self, claim: Claim, now: float) -> Holder:
        """The holder after a claim; it is the claimant's unless another run holds it.

        Args:
            claim: of a run.
            now: a monotonic time in seconds.
        """
        if self._owner and now - self._renewed_at > LEASE_S:
            self._owner, self._name = "", ""
        if claim.owner == self._owner or not self._owner:
            self._owner, self._name = ("", "") if claim.release else (claim.owner, claim.name)
            self._renewed_at = now
        return Holder(self._owner, self._name, now - self._renewed_at if self._owner else 0.0)
