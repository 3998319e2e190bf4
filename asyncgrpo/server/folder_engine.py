"""The server's side of folder sync: a vLLM weight-transfer engine that reads a weight folder.

    update_weights {"path": "/runs/x/served/policy-v000012", "version": 12}
        manifest and checksums  ->  layerwise reload  ->  packed LM head rebuilt

All of it happens in `update_weights`, verification first: a bad folder is refused while the old
weights still stand, and no layer is left on the meta device for `resume` to trip over. Tensors
carry their Hugging Face checkpoint names; those absent keep their weights. Imported only inside
vLLM's workers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from asyncgrpo.errors import SyncError
from asyncgrpo.server.weight_folder import verified_files

NamedTensor = tuple[str, torch.Tensor]


@dataclass
class FolderInitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class FolderUpdateInfo(WeightTransferUpdateInfo):
    """The folder to load."""

    path: str
    version: int | None = None  # refused when the manifest holds another


class FolderWeightTransferEngine(WeightTransferEngine[FolderInitInfo, FolderUpdateInfo]):
    """Loads whole weights from a shared folder into the running model."""

    init_info_cls = FolderInitInfo
    update_info_cls = FolderUpdateInfo

    def init_transfer_engine(self, init_info: FolderInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Nothing to prepare: an update that never comes leaves the model as it is."""

    def finish_weight_update(self) -> None:
        """Nothing to do: `update_weights` returns when all is loaded."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Verify the folder, then load it.

        Raises:
            SyncError: the folder is not what was published (nothing was changed), or does not
                cover a fused layer whole.
        """
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FolderUpdateInfo) -> None:
        """As `update_weights`, from typed information."""
        files = verified_files(Path(update_info.path), version=update_info.version)
        initialize_layerwise_reload(self.model)
        try:
            load_weights = cast(
                "Callable[[Iterator[NamedTensor]], object]", self.model.load_weights
            )
            load_weights(_tensors(files))
            partial = _drop_partly_loaded(self.model)
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
            _rebuild_packed_lm_heads(self.model)
        if partial:
            raise SyncError(
                f"{Path(update_info.path).name}: holds only a part of {', '.join(partial)}: "
                "weights that vLLM fuses (q, k, v; gate, up) must be published together"
            )


def _tensors(files: tuple[Path, ...]) -> Iterator[NamedTensor]:
    for path in files:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)


def _drop_partly_loaded(model: torch.nn.Module) -> list[str]:
    """Drop what was loaded of incomplete layers, so that they keep their weights.

    An embedding padded to a round vocabulary always gets less than its size.
    """
    partial: list[str] = []
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or isinstance(layer, VocabParallelEmbedding):
            continue
        if 0 < info.load_numel < (info.load_numel_total or 0):
            info.loaded_weights.clear()
            info.load_numel = 0
            partial.append(name)
    return partial


def _rebuild_packed_lm_heads(model: torch.nn.Module) -> None:
    """On CPU an LM head computes with a packed copy of its weight.

    A tied one shares the embedding's weight, so no weight is ever loaded under its own name and
    nothing repacks it: it would go on with the old copy (logprobs off by 0.9).
    """
    if not current_platform.is_cpu():
        return
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and isinstance(
            layer.quant_method, UnquantizedEmbeddingMethod
        ):
            layer.quant_method.process_weights_after_loading(layer)
