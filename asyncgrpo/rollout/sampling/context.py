"""The context of the rollout that runs in a task.

`generate_one_turn(prompt_ids)` samples for one rollout, whose seed and policy are in its context.
Each rollout runs in a task of its own; a task that a hook starts has the same context.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from asyncgrpo.errors import HookError
from asyncgrpo.rollout.group import Messages
from asyncgrpo.rollout.sampling.policy import PolicyName
from asyncgrpo.rollout.tools.tools import ToolFunction, ToolUse


@dataclass(slots=True)
class RolloutContext:
    """The rollout that runs in this task."""

    epoch: int
    position: int
    rollout: int  # index in its group
    messages: Messages  # the prompt
    tools: list[ToolFunction]  # the recipe's, and the environment's methods
    prompt_ids: Int32[np.ndarray, "P"] | None  # rendered once for the group, where all share it
    tool_use: ToolUse = field(default_factory=ToolUse)
    policy: PolicyName | None = None  # fixed when it is first asked for
    policy_is_used: bool = False  # by a turn, or by a hook that read its name
    num_turns: int = 0  # requested so far


_current: ContextVar[RolloutContext] = ContextVar("rollout")


def enter_rollout(context: RolloutContext) -> None:
    """Makes `context` the rollout of this task, which runs no other."""
    _current.set(context)


def current_rollout() -> RolloutContext:
    """The rollout of this task.

    Raises:
        HookError: called outside a rollout.
    """
    try:
        return _current.get()
    except LookupError:
        raise HookError(
            "generate_one_turn was called outside generate_one: a turn belongs to a rollout, "
            "which gives it its seed and policy"
        ) from None
