"""Asynchronous GRPO: generation and training side by side.

The names below are what a user's hooks import; they load on first use, so that importing the
package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgrpo.records import Sample
    from asyncgrpo.rollout.group import Rollout, RolloutGroup, TurnRecord
    from asyncgrpo.rollout.loop import AsyncRolloutLoop
    from asyncgrpo.training.loss.correction import RatioLimits, Ratios, gate

__all__ = [
    "AsyncRolloutLoop",
    "RatioLimits",
    "Ratios",
    "Rollout",
    "RolloutGroup",
    "Sample",
    "TurnRecord",
    "gate",
]

_MODULES = {
    "AsyncRolloutLoop": "asyncgrpo.rollout.loop",
    "RatioLimits": "asyncgrpo.training.loss.correction",
    "Ratios": "asyncgrpo.training.loss.correction",
    "Rollout": "asyncgrpo.rollout.group",
    "RolloutGroup": "asyncgrpo.rollout.group",
    "Sample": "asyncgrpo.records",
    "TurnRecord": "asyncgrpo.rollout.group",
    "gate": "asyncgrpo.training.loss.correction",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'asyncgrpo' has no attribute {name!r}")
