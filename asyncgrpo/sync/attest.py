"""Attestation: replicas serve the weights that were published.

    probe tokens  --trainer-->  published logprobs  -.
                                                      }-->  mean difference <= tolerance,
    probe tokens  --replica-->  served logprobs     -'      and no other version fits better

The tolerance covers what two correct implementations differ by. A replica that serves older
weights differs by less than that when an update is small, so it is also compared with the
versions it may have got stuck at: the first (an adapter that is the identity, or weights never
loaded) and the few before. Limit: two versions closer to each other than the replica's own
rounding cannot be told apart by any request, and none of this claims to.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from asyncgrpo.errors import ServerError, SyncError
from asyncgrpo.sync.backend import Server, on_each

_log = logging.getLogger(__name__)

NUM_PROBE_TOKENS = 64
# A replica is stuck at another version when it is this many times nearer to it.
NEARER = 4.0
NUM_RECENT = 4  # versions a stale mount may still show

Logprobs = Float32[np.ndarray, "n"]


def probe_tokens(
    vocab_size: int, *, seed: int, length: int = NUM_PROBE_TOKENS, avoid: Sequence[int] = ()
) -> Int32[np.ndarray, "length"]:
    """The tokens a run is attested with: drawn uniformly, equal for equal seeds.

    Text no one wrote keeps every prediction uncertain, so that its logprobs move with the weights.

    Args:
        vocab_size: of the tokenizer, not of a padded embedding.
        seed: of the run.
        length: tokens of the probe; at least 2, as the first is not predicted.
        avoid: ids with a meaning of their own to a server, such as image placeholders.
    """
    assert length >= 2
    allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(avoid, np.int32))
    return np.random.default_rng(seed).choice(allowed, size=length).astype(np.int32)


@dataclass(frozen=True)
class Probe:
    """The trainer's own logprobs of a fixed sequence, under the weights published."""

    token_ids: Int32[np.ndarray, "n"]
    logprobs: Logprobs  # of each token given those before it; entry 0 is 0


@dataclass(frozen=True)
class Attestation:
    """The comparison of one replica's logprobs with the published ones."""

    largest: float  # nats
    mean: float
    stuck_at: int | None = None  # the version it serves instead, where one fits better
    tolerance: float = 0.0

    @property
    def passed(self) -> bool:
        """True where the replica serves what was published; not a number fails."""
        return self.stuck_at is None and self.mean <= self.tolerance


def compare(
    served: Logprobs, published: Logprobs, others: dict[int, Logprobs], tolerance: float
) -> Attestation:
    """Compare a replica's logprobs with the trainer's, and with those of `others` by version.

    The mean is held against the tolerance, as one unlikely token can be far off in 16 bits.
    """
    difference = np.abs(served.astype(np.float64) - published)[1:]
    largest = float(difference.max())
    stuck_at = None
    for version, logprobs in others.items():
        to_other = float(np.abs(served.astype(np.float64) - logprobs)[1:].max())
        if to_other * NEARER < largest:
            stuck_at = version
    return Attestation(largest, float(difference.mean()), stuck_at, tolerance)


class Attestor:
    """Asks every replica for the probe's logprobs after each publish."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._others: dict[int, Logprobs] = {}  # of the first and of the latest versions

    async def attest(
        self,
        policy: str,
        version: int,
        probe: Probe,
        servers: Sequence[Server],
        reload: Callable[[Server], Awaitable[None]],
    ) -> float:
        """Compare all replicas; one that fails is reloaded once and compared again.

        Returns the mean difference of the replica farthest off, in nats. Raises `SyncError` naming
        a replica that fails again.
        """

        async def one(server: Server) -> Attestation:
            attestation = await self._ask(server, policy, version, probe)
            if attestation.passed:
                return attestation
            message = _message(server, policy, version, attestation)
            _log.warning("%s; loading once more", message)
            await reload(server)
            again = await self._ask(server, policy, version, probe)
            if not again.passed:
                message = _message(server, policy, version, again)
                raise SyncError(f"{message} (after one reload)")
            return again

        attestations = await on_each(servers, one)
        self._remember(version, probe.logprobs)
        return max(attestation.mean for attestation in attestations)

    async def _ask(
        self,
        server: Server,
        policy: str,
        version: int,
        probe: Probe,
    ) -> Attestation:
        try:
            served = await server.prompt_logprobs(policy, probe.token_ids)
        except ServerError as error:
            raise SyncError(
                f"version {version} cannot be attested: {server.base_url} does not score the "
                f"probe as {policy!r}: {error}"
            ) from error
        if served.shape != probe.logprobs.shape:
            raise SyncError(
                f"version {version} cannot be attested: {server.base_url} answered "
                f"{served.size} logprobs for a probe of {probe.logprobs.size} tokens"
            )
        return compare(served, probe.logprobs, self._others, self._tolerance)

    def _remember(self, version: int, logprobs: Logprobs) -> None:
        known = [*self._others.items(), (version, logprobs)]
        self._others = dict(known[:1] + known[1:][-NUM_RECENT:])


def _message(server: Server, policy: str, version: int, attestation: Attestation) -> str:
    found = (
        f"{server.base_url} does not serve what was published as version {version} ({policy!r}): "
        f"the probe's logprobs differ by {attestation.mean:.2e} nats on average, up to "
        f"{attestation.largest:.2e}; tolerance {attestation.tolerance:.2e}"
    )
    if attestation.stuck_at is not None:
        return (
            f"{found}. They are those of version {attestation.stuck_at}: the server ignored the "
            "load, or reads sync.path from a stale mount"
        )
    return (
        f"{found}. Either the server ignored the load (base weights under the adapter's name), "
        "or it reads sync.path from a stale or different mount, or serves another model or dtype "
        "than the trainer's (server.dtype, model.dtype); if the dtypes differ on purpose, raise "
        "sync.attest_tolerance"
    )
