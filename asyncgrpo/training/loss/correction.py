"""The door for corrections: `loss.correction` names a function, ours or a user's.

    weight(ratios, limits) -> weights        pure; all tensors of one shape, [T] or [T, K]

    Ratios    of each token: log p/q, that of its sample's other terms together, the sample's
              length and its advantage; and from them `token`, `sample` and `mean`, the ratios
    limits    loss.vllm_importance_sampling_clip_min, _max, loss.epsilon, loss.epsilon_high
    weights   the factor of grad log p; 0 leaves a token out

A weight is asked for the tokens that were drawn, [T], and, by score centering, for the K top
tokens of each term that might have been, [T, K]: then the ratios of the sample's other terms are
held. Weights are constants: they carry no gradient. Without centering, what `gate` marks only says
which terms the clipped loss keeps, by weights that are not 0.

Letters: T terms, K top sampler tokens.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from asyncgrpo.config.reading.built_in import full_path
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.errors import HookError
from asyncgrpo.process.imports import load_object
from asyncgrpo.process.user_code import hook_error
from asyncgrpo.training.model.row_tensors import RowTensors

KEY = ("loss", "correction")
LOG_RATIO_LIMIT = 30.0  # exp(30) is beyond any clip range and still finite when squared


def ratio(log_ratio: Tensor) -> Tensor:
    """The ratio of two probabilities, finite whatever they are; NaN stays."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True, slots=True)
class RatioLimits:
    """The keys of the recipe that treat ratios."""

    clip_min: float
    clip_max: float
    epsilon: float
    epsilon_high: float


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """The facts of each token: four tensors of one shape, [T] or [T, K]."""

    log_ratio: Tensor  # log p(v) / q(v) of the token
    log_rest: Tensor  # the sum of it over the sample's other terms
    length: Tensor  # n: terms of the sample
    advantage: Tensor  # of the sample

    @classmethod
    def of(cls, log_ratio_T: Tensor, row: RowTensors) -> "Ratios":
        """Those of a row's drawn tokens; every sample of a row is whole."""
        zero_M = log_ratio_T.new_zeros(row.num_samples)
        log_rho_T = zero_M.index_add(0, row.term_sample_T, log_ratio_T)[row.term_sample_T]
        one_T = torch.ones_like(log_ratio_T)
        length_T = zero_M.index_add(0, row.term_sample_T, one_T)[row.term_sample_T]
        return cls(log_ratio_T, log_rho_T - log_ratio_T, length_T, row.term_advantage_T)

    def had(self, log_ratio: Tensor) -> "Ratios":
        """Those of other tokens in their places: one for each, or K."""

        def held(value_T: Tensor) -> Tensor:
            return value_T if log_ratio.dim() == 1 else value_T[:, None].expand_as(log_ratio)

        return Ratios(log_ratio, held(self.log_rest), held(self.length), held(self.advantage))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (self.log_ratio, self.log_rest, self.length, self.advantage)

    @property
    def token(self) -> Tensor:
        """The token's own ratio r."""
        return ratio(self.log_ratio)

    @property
    def sample(self) -> Tensor:
        """The product rho of the sample's ratios."""
        return ratio(self.log_rest + self.log_ratio)

    @property
    def mean(self) -> Tensor:
        """The geometric mean g of the sample's ratios."""
        return ratio((self.log_rest + self.log_ratio) / self.length)


Weigh = Callable[[Ratios, RatioLimits], Tensor]


@dataclass(frozen=True, slots=True)
class Gate:
    """A correction that only keeps or drops tokens; made by `gate`."""

    weigh: Weigh

    def __call__(self, ratios: Ratios, limits: RatioLimits) -> Tensor:
        return self.weigh(ratios, limits)


def gate(weigh: Weigh) -> Gate:
    """Marks a correction whose ratio the clipped loss replaces by its own."""
    return Gate(weigh)


# docs/decisions/0016
@dataclass(frozen=True, slots=True)
class Correction:
    """The correction of a recipe."""

    PROBED: ClassVar[int] = 3  # terms of the largest made-up row

    path: str  # its import path
    function: Weigh

    @classmethod
    def named(cls, value: str) -> "Correction":
        """The one that `loss.correction` names.

        Raises:
            HookError: it cannot be imported, or is no function of two arguments.
        """
        path = full_path(KEY, value)
        found = load_object(path, key=".".join(KEY))
        correction = cls(path, found)
        try:
            inspect.signature(found.weigh if isinstance(found, Gate) else found).bind(None, None)
        except (TypeError, ValueError) as error:
            raise HookError(
                f"{correction} cannot be called: {error}; expected a function of two arguments, "
                "`weight(ratios, limits)`"
            ) from error
        return correction

    def __str__(self) -> str:
        place, _, name = self.path.rpartition(":")
        return f"{'.'.join(KEY)}: `{name}` of {place}"

    @property
    def is_gate(self) -> bool:
        """True if it only keeps or drops tokens: the clipped loss has its own ratio."""
        return isinstance(self.function, Gate)

    def weight(self, ratios: Ratios, limits: RatioLimits) -> Tensor:
        """The weight of each token; 0 where it is left out.

        Raises:
            HookError: the function raised, or returned what is no such tensor.
        """
        try:
            found: Any = self.function(ratios, limits)
        except HookError:
            raise
        except Exception as error:
            raise hook_error(f"{self} raised", error) from error
        return self._checked(found, ratios.log_ratio)

    def rehearse(self, config: LossConfig, limits: RatioLimits, device: torch.device) -> None:
        """Calls the function as training does, on made-up ratios, before there is a server.

        Raises:
            HookError: it breaks its contract.
        """
        widths = (1, config.num_sampler_logprobs) if config.score_centering else ()
        for shape in ((1,), (self.PROBED,), *((self.PROBED, width) for width in widths)):
            ratios = _made_up(shape, device)
            before = [each.clone() for each in ratios.tensors]
            weights = self.weight(ratios, limits)
            if not weights.isfinite().all():
                raise HookError(
                    f"{self} returned {weights.flatten().tolist()} for the log ratios "
                    f"{ratios.log_ratio.flatten().tolist()}; expected finite numbers"
                )
            if not all(map(torch.equal, before, ratios.tensors)):
                raise HookError(
                    f"{self} changed its arguments; expected a function that only reads"
                )

    def refuse_unsound(self, num_terms: int) -> None:
        """Raises a `HookError` if weights of `num_terms` terms were no finite numbers."""
        if num_terms:
            raise HookError(
                f"{self} returned weights that are not finite for {num_terms} tokens whose ratios "
                "are; expected finite numbers: no weight was changed by this step"
            )

    def _checked(self, found: Any, log_ratio: Tensor) -> Tensor:
        expected = f"expected a tensor of the shape of `ratios.log_ratio`, {list(log_ratio.shape)}"
        if not isinstance(found, Tensor):
            raise HookError(f"{self} returned a {type(found).__name__}; {expected}")
        if found.shape != log_ratio.shape:
            raise HookError(f"{self} returned shape {list(found.shape)}; {expected}")
        if found.device != log_ratio.device or found.is_complex():
            raise HookError(
                f"{self} returned {found.dtype} on {found.device}; expected real numbers on "
                f"{log_ratio.device}, as its arguments are"
            )
        if found.requires_grad:
            raise HookError(
                f"{self} returned weights that need a gradient of their own; expected constants, "
                "which multiply grad log p: return `weights.detach()`, and train no parameter in it"
            )
        return found.to(log_ratio.dtype)


def _made_up(shape: tuple[int, ...], device: torch.device) -> Ratios:
    """Ratios between 1/e and e, of both signs of the advantage."""
    count = torch.Size(shape).numel()
    log_ratio = torch.linspace(-1, 1, count, device=device).reshape(shape)
    sign = torch.where(torch.arange(count, device=device) % 2 > 0, -1.0, 1.0).reshape(shape)
    return Ratios(log_ratio, log_ratio / 2, torch.full_like(log_ratio, 3), sign)
