"""An ordinal becomes an open group, or its prompt is dropped.

    ordinal --row--> Prompt --filter_prompt--> environment --> prompt_ids --room--> OpenGroup
              |          |                         |               |          |
            error     filtered                   error           error      error

A dropped prompt goes to the trainer as PromptDropped. An epoch whose prompts were all dropped
ends the run, since no step could follow it.
"""

import logging
from collections.abc import Awaitable, Callable

import numpy as np
from jaxtyping import Int32

from asyncgrpo.channel.messages import DropReason, EpochEmpty, PromptDropped
from asyncgrpo.errors import DataError, HookError
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.rollout.data.conversation import RowError
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.data.stream import UNKNOWN_LENGTH
from asyncgrpo.rollout.hooks.threads import in_daemon_thread
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.limits.epoch_census import EmptyEpochError, EpochCensus
from asyncgrpo.rollout.limits.heartbeats import Heartbeats
from asyncgrpo.rollout.limits.limits import Limits
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.open_group import OpenGroup
from asyncgrpo.rollout.sampling.policy import CurrentPolicy
from asyncgrpo.rollout.sampling.sampler import Sampler
from asyncgrpo.rollout.tools.environment_kind import EnvironmentKind
from asyncgrpo.rollout.tools.tools import schema_of

log = logging.getLogger(__name__)

HEARTBEAT = "generation"
TOO_LONG = "longer than the context (server.max_model_len)"


class Opening:
    """Opens groups, one at a time: part of the generation loop, whose heartbeat it is.

    takes      an ordinal
    gives      its open group; or PromptDropped, or EpochEmpty as well, to the trainer
    waits for  the row of a stream, the rendering of its prompt
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        loop: AsyncRolloutLoop,
        sampler: Sampler,
        policy: CurrentPolicy,
        limits: Limits,
        heartbeats: Heartbeats,
        tell: Callable[[PromptDropped | EpochEmpty], Awaitable[None]],
    ) -> None:
        self._prompts = inputs.prompts
        self._num_prompts = len(inputs.prompts)
        self._chat = inputs.chat
        self._tool_schemas = [schema_of(tool, key="rollout.tools") for tool in inputs.tools]
        self._environments = inputs.environments
        self._share = inputs.share
        self._seed = inputs.config.rollout.seed
        self._num_rollouts = inputs.config.rollout.num_generations
        self._loop = loop
        self._sampler = sampler
        self._policy = policy
        self._limits = limits
        self._heartbeats = heartbeats
        self._tell = tell
        length = self._num_prompts if self._num_prompts < UNKNOWN_LENGTH else None
        self._census = EpochCensus(length, inputs.share)
        self._num_groups = 0
        self._drops_long = inputs.config.data.long_prompts == "drop"
        self._said_dropped = False

    async def open(self, ordinal: int) -> OpenGroup | None:
        """The group of a prompt; None where the prompt was dropped.

        Raises:
            RunError: the failure budget is used up, or all prompts of an epoch were dropped.
        """
        epoch, position = divmod(ordinal, self._num_prompts)
        opened = await self._open(epoch, position)
        if isinstance(opened, DropReason):
            await self._tell(PromptDropped(epoch, position, opened))
            return None
        self._num_groups += 1
        return opened

    async def _open(self, epoch: int, position: int) -> OpenGroup | DropReason:
        try:
            with self._heartbeats.resting(HEARTBEAT):  # a stream may be slow
                prompt = await self._prompts.take(seed=self._seed, epoch=epoch, position=position)
        except RowError as error:
            self._limits.count_failure(str(error))
            return DropReason.ERROR
        self._census.see(prompt.epoch)
        try:
            if not self._accepts(prompt):
                await self._count_out("rejected by filter_prompt")
                return DropReason.FILTERED
            environment = self._environment(prompt)
            prompt_ids = await self._rendered(prompt, environment)
        except (DataError, HookError) as error:
            too_long = isinstance(error, _TooLongError)
            await self._count_out(TOO_LONG if too_long else str(error))
            if too_long and self._drops_long:
                self._say_dropped(prompt.row_index, error)
                return DropReason.TOO_LONG
            self._limits.count_failure(f"row {prompt.row_index}: {error}", error)
            return DropReason.ERROR
        return OpenGroup(
            group_id=self._num_groups,
            epoch=epoch,
            position=position,
            prompt=prompt,
            prompt_ids=prompt_ids,
            model_version=self._policy.now.version,
            num_rollouts=self._num_rollouts,
            environment=environment,
        )

    def _accepts(self, prompt: Prompt) -> bool:
        try:
            return bool(self._loop.filter_prompt(prompt.row_index, prompt.row, prompt.epoch))
        except Exception as error:
            hook = f"{type(self._loop).__name__}.filter_prompt"
            raise hook_error(f"{hook} raised", error) from error

    def _environment(self, prompt: Prompt) -> EnvironmentKind | None:
        if self._environments is None:
            return None
        return self._environments.kind_of(prompt.row, f"row {prompt.row_index}")

    async def _rendered(
        self, prompt: Prompt, environment: EnvironmentKind | None
    ) -> Int32[np.ndarray, "P"] | None:
        """The tokens of the whole group's prompt; None where the environment makes it."""
        if not prompt.messages:
            return None
        schemas = [*self._tool_schemas, *(environment.schemas if environment else ())]
        prompt_ids = await in_daemon_thread(self._chat.render, prompt.messages, schemas)
        if self._sampler.room_for(prompt_ids) <= 0:
            raise _TooLongError(
                f"a prompt of {prompt_ids.size} tokens leaves no room in the context; raise "
                "server.max_model_len, or leave such rows out: data.long_prompts=drop"
            )
        return prompt_ids

    def _say_dropped(self, row_index: int, error: Exception) -> None:
        """Tells of the first; the others are counted: `ledger/dropped_too_long_count`."""
        if not self._said_dropped:
            self._said_dropped = True
            log.warning(
                "row %d is left out, as every longer prompt (data.long_prompts: drop): %s",
                row_index,
                error,
            )

    async def _count_out(self, reason: str) -> None:
        """Counts the prompt just seen as dropped, and ends or reports an epoch without any."""
        try:
            self._census.drop(reason)
        except EmptyEpochError as empty:
            if self._share.alone:
                raise
            await self._tell(EpochEmpty(empty.epoch, str(empty)))


class _TooLongError(DataError):
    """A prompt without room for a reply; the census counts all as one reason."""
