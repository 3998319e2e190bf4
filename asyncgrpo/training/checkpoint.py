"""A checkpoint's content: gathered, written, loaded. Its layout: `ledger/checkpoint_layout.py`.

    config.json, model.safetensors, ...     the model or (adapter_*) the adapter, with its
    tokenizer.json, ...                     tokenizer: `from_pretrained` loads them
    generation_config.json, ...             files of the start model, as they are
    optimizer.safetensors                   the optimizer's state by parameter name
    trainer.json, rollout_state.json        the rest of the trainer's state; the ledger

Nothing is pickled. State is saved whole, by parameter name, so that a run goes on with another
number of ranks. Random draws follow from (seed, step, rank) and the learning rate from the step,
so neither has state; an optimizer's hyperparameters are always those of the configuration.
"""

import logging
import shutil
import tempfile
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

from asyncgrpo.errors import ConfigError, RunError
from asyncgrpo.ledger.checkpoint_layout import (
    TRAINER_NAME,
    Checkpoint,
    TrainerState,
    checkpoint_path,
    draft_path,
    seal,
    unusable,
)
from asyncgrpo.ledger.state_file import RolloutState, write_state
from asyncgrpo.sync.tensors import ADAPTER_FILE, adapter_config, adapter_tensors
from asyncgrpo.training.model.model import Policy, Tokenizer

logger = logging.getLogger(__name__)

OPTIMIZER_NAME: Final = "optimizer.safetensors"
SEPARATOR: Final = "/"  # parameter name / entry of its optimizer state


def load_optimizer(checkpoint: Checkpoint, policy: Policy, optimizer: Optimizer, name: str) -> None:
    """Loads the optimizer's state into a fresh one; every rank calls it.

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
            raise unusable(checkpoint.path, f"{OPTIMIZER_NAME} is of another model ({parameter})")
        optimizer.state[target] = {
            entry: _as_state_of(target, value, on_device=id(target) in on_device)
            for entry, value in entries.items()
        }


def _saved_state(checkpoint: Checkpoint) -> dict[str, dict[str, Tensor | float]]:
    """The optimizer's state by parameter; one without a gradient so far has none."""
    try:
        tensors: dict[str, Any] = load_file(checkpoint.path / OPTIMIZER_NAME)
    except (OSError, SafetensorError) as error:
        raise unusable(checkpoint.path, f"{OPTIMIZER_NAME}: {error}") from error
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
    """Weights and optimizer state, gathered from all ranks; only rank 0's tensors are whole."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, float]


def gather(policy: Policy, optimizer: Optimizer) -> Contents:
    """Collects weights and optimizer state. Collective: every rank calls it."""
    if isinstance(policy.model, PeftModel):
        model = adapter_tensors(policy.model)
    else:
        model = _whole_model(policy)
    # In the parameters' order, so that all ranks gather the same tensor at a time.
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
    """Writes the checkpoint of `state.step`, whole or not at all; rank 0 calls it.

    Raises RunError where it cannot be written; earlier checkpoints stay as they are.
    """
    final = checkpoint_path(directory, state.step)
    draft = draft_path(directory, state.step)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        _write_model(draft, contents.model, policy)
        tokenizer.save_pretrained(draft)
        save_file(contents.optimizer, draft / OPTIMIZER_NAME)
        (draft / TRAINER_NAME).write_bytes(msgspec.json.encode(trainer))
        write_state(draft, state)
        seal(draft, final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise RunError(
            f"the checkpoint of step {state.step} cannot be written to {directory}: {error}; "
            f"earlier checkpoints are whole: free space, then `asyncgrpo resume`"
        ) from error
    return final


def rehearse_save(policy: Policy, tokenizer: Tokenizer, run_dir: Path) -> None:
    """Writes all of a checkpoint but most of its weights, and takes it away again.

    Before the model is sharded, so on any one rank.

    Raises:
        ConfigError: A checkpoint could not be written: better now than after `save_steps` steps.
        RunError: Nothing can be written to the run directory.
    """
    name, smallest = min(policy.model.state_dict().items(), key=lambda item: item[1].numel())
    try:
        with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=run_dir) as folder:
            _write_model(Path(folder), {name: smallest.cpu().contiguous()}, policy)
            tokenizer.save_pretrained(folder)
    except OSError as error:
        raise RunError(f"run.dir: nothing can be written to {run_dir}: {error}") from error
    except Exception as error:  # whatever a model's or a tokenizer's class raises while it saves
        raise ConfigError(
            f"model.name_or_path: no checkpoint of this model can be written: "
            f"{type(error).__name__}: {error}"
        ) from error


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
        for name, content in policy.files_handed_on.items():
            (folder / name).write_bytes(content)
