"""One turn of the current rollout, from the server.

    prompt_ids + RolloutContext  --TurnRequest-->  server  --Turn-->  TurnRecord

The policy of a rollout is fixed at its first turn. If a sync replaced the name, an unused rollout
switches to the current policy; one that already used it is dropped: no conversation changes policy
part-way.

All rollouts together wait for a server that is down, `server.vllm_server_timeout` at most; then
the run ends. A request that gets no answer in that time, while others do, costs its rollout.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from jaxtyping import Int32

from asyncgrpo.config import Config, known
from asyncgrpo.errors import ServerError
from asyncgrpo.records import FinishReason, Turn, TurnRequest
from asyncgrpo.rollout.group import TokenIds, TurnRecord, turn_record
from asyncgrpo.rollout.sampling.context import RolloutContext, current_rollout
from asyncgrpo.rollout.sampling.policy import CurrentPolicy, PolicyName
from asyncgrpo.rollout.sampling.seeds import request_seed
from asyncgrpo.server.failures import UnknownModelError
from asyncgrpo.server.retries import OUTAGE, check_patience, outage_waits
from asyncgrpo.server.sampling import sampling_params

NEXT_POLICY_TIMEOUT_S = 30.0  # a sync under way publishes its name within this


class TurnClient(Protocol):
    """The part of `ServerClient` that is used here."""

    async def generate(self, request: TurnRequest) -> Turn: ...


class Sampler:
    """Samples turns for every rollout of the worker."""

    def __init__(
        self,
        config: Config,
        client: TurnClient,
        policy: CurrentPolicy,
        *,
        on_retry: Callable[[], None],
    ) -> None:
        self._client = client
        self._policy = policy
        self._on_retry = on_retry
        self._seed = config.rollout.seed
        self._max_completion_length = config.rollout.max_completion_length
        self._max_model_len = known(config.server.max_model_len)
        self._server_timeout_s = config.server.vllm_server_timeout
        self._in_place = known(config.sync.backend) != "adapter"
        self._answered_at = 0.0  # when the server last gave any answer
        self._sampling = sampling_params(config)

    async def turn(self, prompt_ids: TokenIds) -> TurnRecord:
        """Samples one turn of the current rollout.

        Raises:
            ServerError: the rollout is lost.
            RunError: no server answered for `server.vllm_server_timeout` seconds.
        """
        rollout = current_rollout()
        prompt = np.asarray(prompt_ids, np.int32)
        max_tokens = self.room_for(prompt)
        if max_tokens <= 0:
            raise ServerError(
                f"a prompt of {prompt.size} tokens leaves no room in the context of "
                f"{self._max_model_len}; raise server.max_model_len"
            )
        number = rollout.num_turns
        rollout.num_turns += 1
        seed = request_seed(
            self._seed,
            epoch=rollout.epoch,
            position=rollout.position,
            rollout=rollout.rollout,
            turn=number,
        )
        turn = await self._sample(rollout, prompt, max_tokens, seed)
        return self._record(prompt, turn)

    def policy_of(self, rollout: RolloutContext) -> PolicyName:
        """The policy of a rollout: the current one when it is first asked for."""
        if rollout.policy is None:
            rollout.policy = self._policy.now
        return rollout.policy

    def room_for(self, prompt: Int32[np.ndarray, "P"]) -> int:
        """Tokens a turn may have after `prompt`; 0 or less where it fills the context."""
        return min(self._max_completion_length, self._max_model_len - prompt.size)

    async def _sample(
        self,
        rollout: RolloutContext,
        prompt: Int32[np.ndarray, "P"],
        max_tokens: int,
        seed: int,
    ) -> Turn:
        while True:
            policy = self.policy_of(rollout)
            request = TurnRequest(policy.name, prompt, max_tokens, seed, self._sampling)
            try:
                turn = await self._outlast_outage(request)
            except UnknownModelError:
                if rollout.policy_is_used:
                    raise
                replacement = await self._replacement(policy)
                if rollout.policy == policy:  # else a turn beside this one has done so
                    rollout.policy = replacement
                self._on_retry()
            else:
                if rollout.policy != policy:
                    raise ServerError(
                        f"turns side by side met `{policy.name}` as it was replaced; expected one "
                        "policy for a whole rollout"
                    )
                rollout.policy_is_used = True
                return turn

    async def _replacement(self, unknown: PolicyName) -> PolicyName:
        policy = await self._policy.other_than(unknown, timeout_s=NEXT_POLICY_TIMEOUT_S)
        if policy == unknown:
            raise ServerError(
                f"the server does not serve the current policy `{unknown.name}` and no other was "
                f"published for {NEXT_POLICY_TIMEOUT_S:.0f} s; was the server restarted?"
            )
        return policy

    async def _outlast_outage(self, request: TurnRequest) -> Turn:
        """Asks until a server answers: the outer loop of `server.retries`."""
        asked_at, waits = time.monotonic(), outage_waits()
        while True:
            try:
                turn = await self._client.generate(request)
            except OUTAGE as error:
                check_patience(
                    error,
                    now=time.monotonic(),
                    asked_at=asked_at,
                    answered_at=self._answered_at,
                    patience_s=self._server_timeout_s,
                )
                self._on_retry()
                await asyncio.sleep(next(waits))
            except ServerError:
                self._answered_at = time.monotonic()  # if not as it should
                raise
            else:
                self._answered_at = time.monotonic()
                return turn

    def _record(self, prompt: Int32[np.ndarray, "P"], turn: Turn) -> TurnRecord:
        if turn.finish_reason is FinishReason.ABORT:
            raise ServerError("the server aborted the request; was the server paused or stopped?")
        record = turn_record(prompt, turn)
        if not self._in_place:
            record.version_spans = ()  # of the base weights, which never change under adapters
        return record
