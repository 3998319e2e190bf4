"""The sums behind the loss's metrics; they merge exactly over rows and ranks.

    policy_loss --LossSums--> merge ... merge --aggregates()--> of all ranks --> loss_metrics

Everything stays on the device as [total, weight, low, high] per name until `aggregates`, which is
the one transfer, once per log window.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncgrpo.metrics.values import Aggregate, Aggregates, Recorder


def observe(values: Tensor) -> Tensor:
    """[total, weight, low, high] of at least one value, with weight 1 each."""
    wide = values.detach().to(torch.float64)
    low, high = wide.aminmax()
    return torch.stack([wide.sum(), torch.full_like(low, wide.numel()), low, high])


def observe_mean(values: Tensor) -> Tensor:
    """The same, where only the mean is asked for: both extremes are the mean."""
    total = values.detach().sum(dtype=torch.float64)
    mean = total / values.numel()
    return torch.stack([total, torch.full_like(total, values.numel()), mean, mean])


@dataclass(frozen=True, slots=True)
class LossSums:
    """Per metric name: [total, weight, low, high], float64, on the row's device."""

    RATIO_SQUARED: ClassVar[str] = "_ratio_squared"  # kept for ess_frac, no metric itself
    UNSOUND: ClassVar[str] = "_unsound"  # kept for `num_unsound`, no metric itself
    entries: dict[str, Tensor]

    def merge(self, other: "LossSums") -> "LossSums":
        """The observations of both."""
        merged = dict(self.entries)
        for name, entry in other.entries.items():
            held = merged.get(name)
            merged[name] = entry if held is None else _merged(held, entry)
        return LossSums(merged)

    @property
    def num_unsound(self) -> int:
        """The terms whose weights are not finite; a transfer from the device."""
        entry = self.entries.get(self.UNSOUND)
        return 0 if entry is None else int(entry[0])

    def aggregates(self) -> Aggregates:
        """This rank's observations, which `loss_metrics` brings together."""
        if not self.entries:
            return {}
        rows: list[list[float]] = torch.stack(list(self.entries.values())).tolist()
        return {name: Aggregate(*row) for name, row in zip(self.entries, rows, strict=True)}


def loss_metrics(of_ranks: Iterable[Aggregates]) -> Aggregates:
    """All ranks' observations as metrics.

    ess_frac = (sum r)^2 / (n sum r^2) is no mean of what single ranks have, so it is taken last.
    """
    merged = Recorder()
    for aggregates in of_ranks:
        merged.merge(aggregates)
    found = merged.drain()
    found.pop(LossSums.UNSOUND, None)
    squared = found.pop(LossSums.RATIO_SQUARED, None)
    if squared is not None:
        ratio = found["sampling/importance_sampling_ratio/mean"]
        ess_frac = ratio.total**2 / (ratio.weight * squared.total) if squared.total else 0.0
        found["sampling/ess_frac"] = Aggregate(
            ess_frac * ratio.weight, ratio.weight, ess_frac, ess_frac
        )
    return found


def _merged(held: Tensor, entry: Tensor) -> Tensor:
    return torch.stack(
        [
            held[0] + entry[0],
            held[1] + entry[1],
            torch.minimum(held[2], entry[2]),
            torch.maximum(held[3], entry[3]),
        ]
    )
