"""`sync`: how new weights reach the servers."""

from typing import Literal

from asyncgrpo.config.sections.base import Auto, PositiveFloat, PositiveInt, Section


class SyncConfig(Section):
    """Weight sync and its proof."""

    backend: Auto | Literal["adapter", "folder", "nccl"] = "auto"
    """`adapter` = LoRA files under versioned names; `folder` = whole weights through files."""
    weight_sync_steps: PositiveInt = 1
    """Optimizer steps between two syncs."""
    attest: bool = True
    """After each sync, compare the server's logprobs of a probe with the trainer's."""
    attest_tolerance: PositiveFloat | None = None
    """Largest mean difference of those logprobs; null = by dtype."""
    keep_versions: PositiveInt | None = None
    """Published versions kept; null = `rollout.max_staleness` + 1."""
    path: str | None = None
    """Folder that trainer and servers share; null = `served` in the run directory."""
