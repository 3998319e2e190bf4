"""The way from a model's head output to the logits that were sampled from.

logits                  = softcap(scale x head(hidden)) / temperature,  softcap(x) = c tanh(x / c)
d logits / d head output = (1 - (logits x temperature / c)^2) x scale / temperature
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LogitShape:
    """Temperature, logit scale and soft cap."""

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, logits: Tensor) -> Tensor:
        """Turns the head's output into logits, in place."""
        if self.scale != 1.0:
            logits *= self.scale
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.temperature != 1.0:
            logits /= self.temperature
        return logits

    def slope_(self, logits: Tensor) -> Tensor | float:
        """The derivative of `apply_`; in place where it depends on the logits."""
        linear = self.scale / self.temperature
        if self.softcap is None:
            return linear
        return logits.mul_(self.temperature / self.softcap).square_().neg_().add_(1).mul_(linear)


PLAIN = LogitShape()


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A language model's head: logits = shape(hidden x weight^T + bias).

    The weight may also be the embedding's.
    """

    weight_VH: Tensor
    bias_V: Tensor | None = None
    shape: LogitShape = PLAIN
