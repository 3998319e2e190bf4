"""`rollout_state.json`: the prompts that the weights beside it have seen.

    {"format": 1, "step": 48, "policy_version": 12, "epoch": 0, "seed": 42, "num_prompts": 1460,
     "prompt_index": 311, "resolved": [[0, 311], [313, 320]], "partial": {"312": [0, 1, 5]},
     "dropped": {"no_signal": 40}, "rng": {"seed": 42, "step": 48}}

Positions count from the start of `epoch`, the epoch of the first unresolved prompt. They run
past `num_prompts` where the next epoch has begun. Every random draw of the trainer follows from
(seed, step, rank), so `rng` is these two numbers.
"""

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from asyncgrpo.errors import CheckpointError

STATE_NAME: Final = "rollout_state.json"
FORMAT: Final = 1


class RolloutState(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger at the end of one step."""

    format: int = FORMAT
    step: int
    policy_version: int
    epoch: int
    seed: int
    num_prompts: int
    prompt_index: int  # first position not yet resolved
    resolved: tuple[tuple[int, int], ...]
    partial: dict[str, tuple[int, ...]]  # position -> indexes of samples already trained
    dropped: dict[str, int]  # prompts by reason
    rng: dict[str, int]


def write_state(directory: Path, state: RolloutState) -> Path:
    """Writes `directory/rollout_state.json`, whole or not at all."""
    path = directory / STATE_NAME
    draft = path.with_name(f"{STATE_NAME}.tmp")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(state) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return path


def read_state(directory: Path) -> RolloutState:
    """Reads and checks `directory/rollout_state.json`.

    Raises CheckpointError where it is missing, damaged, or of another format.
    """
    path = directory / STATE_NAME
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise CheckpointError(
                f"{path}: format {found!r}; this version reads format {FORMAT}: "
                f"resume with the version of asyncgrpo that wrote it"
            )
        if missing := missing_fields(raw, RolloutState):
            raise CheckpointError(
                f"{path} has no {missing}, which this version needs: resume with the version of "
                f"asyncgrpo that wrote it"
            )
        state = msgspec.convert(raw, RolloutState)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is missing: {directory} is no complete checkpoint"
        ) from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}): resume from another checkpoint with --checkpoint STEP"
        ) from error
    _check(path, state)
    return state


def missing_fields(raw: Any, kind: type[msgspec.Struct]) -> str:
    """Names of the fields that `kind` needs and the mapping `raw` lacks."""
    if not isinstance(raw, dict):
        return ""
    required = (field.name for field in msgspec.structs.fields(kind) if field.required)
    return ", ".join(name for name in required if name not in raw)


def _check(path: Path, state: RolloutState) -> None:
    ends = [0, *(bound for span in state.resolved for bound in span)]
    sound = (
        state.num_prompts > 0
        and state.step >= 0
        and state.epoch >= 0
        and 0 <= state.prompt_index < state.num_prompts
        and ends == sorted(ends)
        and all(position.isdecimal() for position in state.partial)
        and not any(start <= state.prompt_index < end for start, end in state.resolved)
    )
    if not sound:
        raise CheckpointError(
            f"{path} contradicts itself (prompt_index {state.prompt_index} of {state.num_prompts}, "
            f"resolved {state.resolved[:3]}): resume from another checkpoint with --checkpoint STEP"
        )
