"""Checkpoints: complete or not there.

    checkpoints/.step-000050.writing/  --every file, then complete.json-->  step-000050/

    config.json, model.safetensors, ...     the model or (adapter_*) the adapter, with its
    tokenizer.json, ...                     tokenizer: `from_pretrained` loads them
    preprocessor_config.json, ...           the start model's image processor, if it has one
    optimizer.safetensors, trainer.json     the optimizer's state by parameter name, and the rest
    rollout_state.json                      the ledger
    complete.json                           every file with its size; written last

Nothing is pickled. State is saved whole, by parameter name, so that a run goes on with another
number of ranks. Random draws follow from (seed, step, rank) and the learning rate from the step,
so neither has state; an optimizer's hyperparameters are always those of the configuration.
"""

import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch.distributed as dist
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from asyncgrpo.errors import CheckpointError, RunError
from asyncgrpo.ledger.state_file import RolloutState, read_state, write_state
from asyncgrpo.sync.tensors import ADAPTER_FILE, adapter_config, adapter_tensors
from asyncgrpo.training.model.model import Policy, Tokenizer

logger = logging.getLogger(__name__)

MARKER: Final = "complete.json"
TRAINER_NAME: Final = "trainer.json"
OPTIMIZER_NAME: Final = "optimizer.safetensors"
SEPARATOR: Final = "/"  # parameter name / entry of its optimizer state
STEP_PATTERN: Final = re.compile(r"step-(\d{6,})")


class TrainerState(msgspec.Struct, frozen=True):
    """What the trainer knows beside weights, optimizer and ledger."""

    step: int
    num_tokens: int  # forwarded since the run began
    loss_scale: float
    optimizer: str  # trainer.optim
    scalars: dict[str, float]  # of the optimizer's state that are not tensors


class _Marker(msgspec.Struct, frozen=True):
    files: dict[str, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: RolloutState
    trainer: TrainerState


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, or will be."""
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path) -> dict[int, Path]:
    """Checkpoints by step, oldest first; unfinished ones do not count."""
    found = ((STEP_PATTERN.fullmatch(p.name), p) for p in directory.glob("step-*"))
    whole = ((match, path) for match, path in found if match and (path / MARKER).is_file())
    return dict(sorted((int(match[1]), path) for match, path in whole))


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint; None where there is none."""
    checkpoints = list_checkpoints(directory)
    return checkpoints[max(checkpoints)] if checkpoints else None


def open_checkpoint(path: Path) -> Checkpoint:
    """Check that a checkpoint is whole and read its small parts.

    Raises CheckpointError, naming the file at fault.
    """
    try:
        marker = msgspec.json.decode((path / MARKER).read_bytes(), type=_Marker)
        for name, size in marker.files.items():
            found = (path / name).stat().st_size
            if found != size:
                raise _unusable(path, f"{name} has {found} bytes, expected {size}")
        trainer = msgspec.json.decode((path / TRAINER_NAME).read_bytes(), type=TrainerState)
    except FileNotFoundError as error:
        raise _unusable(path, f"{Path(error.filename).name} is missing") from error
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error})") from error
    except msgspec.DecodeError as error:
        raise _unusable(path, f"{MARKER} or {TRAINER_NAME} is damaged ({error})") from error
    return Checkpoint(path, read_state(path), trainer)


def load_optimizer(checkpoint: Checkpoint, policy: Policy, optimizer: Optimizer, name: str) -> None:
    """Load the optimizer's state into a fresh one; every rank calls it.

    Another optimizer than the one saved (`name` is trainer.optim) starts from nothing.
    """
    if checkpoint.trainer.optimizer != name:
        logger.warning(
            "trainer.optim is %s and the checkpoint's was %s: the optimizer starts from nothing",
            name,
            checkpoint.trainer.optimizer,
        )
        return
    trained = {n: p for n, p in policy.scorer.named_parameters() if p.requires_grad}
    on_device = {
        id(p) for group in optimizer.param_groups for p in group["params"] if group.get("fused")
    }
    for parameter, entries in _saved_state(checkpoint).items():
        target = trained.get(parameter)
        if target is None:
            raise _unusable(checkpoint.path, f"{OPTIMIZER_NAME} is of another model ({parameter})")
        optimizer.state[target] = {
            entry: _as_state_of(target, value, on_device=id(target) in on_device)
            for entry, value in entries.items()
        }


def _saved_state(checkpoint: Checkpoint) -> dict[str, dict[str, Tensor | float]]:
    """The optimizer's state by parameter; one without a gradient so far has none."""
    try:
        tensors: dict[str, Any] = load_file(checkpoint.path / OPTIMIZER_NAME)
    except (OSError, SafetensorError) as error:
        raise _unusable(checkpoint.path, f"{OPTIMIZER_NAME}: {error}") from error
    by_parameter: dict[str, dict[str, Tensor | float]] = {}
    for key, value in (tensors | checkpoint.trainer.scalars).items():
        parameter, entry = key.rsplit(SEPARATOR, 1)
        by_parameter.setdefault(parameter, {})[entry] = value
    return by_parameter


def _as_state_of(parameter: nn.Parameter, value: Tensor | float, *, on_device: bool) -> Any:
    """A saved entry where the optimizer has it: beside the parameter, sharded as it is.

    A scalar tensor is a step counter, which only fused kernels want on the device.
    """
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:
        return value.to(parameter.device) if on_device else value
    value = value.to(parameter.device)
    if isinstance(parameter.data, DTensor) and value.shape == parameter.shape:
        data = parameter.data
        return distribute_tensor(value, data.device_mesh, data.placements, src_data_rank=None)
    return value


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a checkpoint, gathered from all ranks; only rank 0's tensors are whole."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, float]


def gather(policy: Policy, optimizer: Optimizer) -> Contents:
    """Collect weights and optimizer state. Collective: every rank calls it."""
    if isinstance(policy.model, PeftModel):
        model = adapter_tensors(policy.model)
    else:
        model = _whole_model(policy)
    # Gathered in the parameters' order, which is every rank's.
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, float] = {}
    for name, parameter in policy.scorer.named_parameters():
        for entry, value in sorted(optimizer.state.get(parameter, {}).items()):
            key = f"{name}{SEPARATOR}{entry}"
            if isinstance(value, Tensor):
                tensors[key] = _gathered(value)
            elif value is not None:
                scalars[key] = float(value)
    return Contents(model, tensors, scalars)


def write_checkpoint(
    directory: Path,
    contents: Contents,
    *,
    policy: Policy,
    tokenizer: Tokenizer,
    state: RolloutState,
    trainer: TrainerState,
) -> Path:
    """Rank 0: write the checkpoint of `state.step`, whole or not at all.

    Raises RunError where it cannot be written; earlier checkpoints stay as they are.
    """
    final = checkpoint_path(directory, state.step)
    draft = directory / f".{final.name}.writing"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        _write_model(draft, contents.model, policy)
        tokenizer.save_pretrained(draft)
        save_file(contents.optimizer, draft / OPTIMIZER_NAME)
        (draft / TRAINER_NAME).write_bytes(msgspec.json.encode(trainer))
        write_state(draft, state)
        _seal(draft)
        shutil.rmtree(final, ignore_errors=True)  # of an attempt that was resumed from before it
        draft.replace(final)
        _fsync(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise RunError(
            f"the checkpoint of step {state.step} cannot be written to {directory}: {error}; "
            f"earlier checkpoints are whole: free space, then `asyncgrpo resume`"
        ) from error
    return final


def prune_checkpoints(directory: Path, keep: int | None) -> None:
    """Delete all but the newest `keep` checkpoints; None keeps all."""
    if keep is None:
        return
    for path in list(list_checkpoints(directory).values())[:-keep]:
        (path / MARKER).unlink(missing_ok=True)  # half deleted is not complete
        shutil.rmtree(path)


def set_aside_after(directory: Path, step: int) -> None:
    """A run that goes on from `step` leaves later checkpoints behind, under another name."""
    for later, path in list_checkpoints(directory).items():
        if later > step:
            aside = path.with_name(f"{path.name}.superseded")
            shutil.rmtree(aside, ignore_errors=True)
            path.replace(aside)


def _whole_model(policy: Policy) -> dict[str, Tensor]:
    whole: dict[str, Tensor] = {}
    by_id: dict[int, Tensor] = {}  # tied weights stay one tensor
    for name, value in policy.model.state_dict(keep_vars=True).items():
        if id(value) not in by_id:
            by_id[id(value)] = _gathered(value)
        whole[name] = by_id[id(value)]
    return whole


def _gathered(value: Tensor) -> Tensor:
    """The whole tensor on the host of rank 0. Collective where it is sharded."""
    value = value.detach()
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return whole.cpu().contiguous() if _is_first() else whole.new_empty(0)


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _write_model(folder: Path, tensors: dict[str, Tensor], policy: Policy) -> None:
    model = policy.model
    if isinstance(model, PeftModel):
        save_file(tensors, folder / ADAPTER_FILE, metadata={"format": "pt"})
        (folder / "adapter_config.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(adapter_config(model)), indent=2)
        )
    else:
        model.save_pretrained(folder, state_dict=tensors)
        for name, content in policy.processor_files.items():
            (folder / name).write_bytes(content)


def _seal(folder: Path) -> None:
    """Bring every file to the disk, then list them in the marker."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _fsync(path)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    (folder / MARKER).write_bytes(msgspec.json.encode(_Marker(sizes)))
    _fsync(folder / MARKER)
    _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a complete checkpoint: {reason}; "
        f"resume from another one with --checkpoint STEP"
    )
