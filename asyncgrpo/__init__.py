"""Asynchronous GRPO: generation and training side by side.

The names below are what a user's hooks import; they load on first use, so that importing the
package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgrpo.rollout.group import Rollout, RolloutGroup, TurnRecord
    from asyncgrpo.rollout.loop import AsyncRolloutLoop

__all__ = ["AsyncRolloutLoop", "Rollout", "RolloutGroup", "TurnRecord"]


def __getattr__(name: str) -> Any:
    if name == "AsyncRolloutLoop":
        from asyncgrpo.rollout import loop

        return loop.AsyncRolloutLoop
    if name in __all__:
        from asyncgrpo.rollout import group

        return getattr(group, name)
    raise AttributeError(f"module 'asyncgrpo' has no attribute {name!r}")
