"""The tiled LM head in each type against full logits in float64 on the same, rounded, numbers.

    error = |x - oracle| / |oracle|   (norms) of logprobs, entropies and both gradients

Logits are summed and kept in float32 whatever the type, so logprobs are those of float32; gradients
are rounded on their way, to 2^-9 (bfloat16) or 2^-12 (float16) of each number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncgrpo.training.head.lm_head import score_terms
from asyncgrpo.training.head.logit_shape import Head, LogitShape
from tests.gpu.line import Line

VALUES, GRADIENTS = 1e-5, {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
SHAPES = (LogitShape(), LogitShape(temperature=0.7, softcap=30.0))
K = 8


@dataclass(frozen=True)
class Size:
    """Of the head, and of what it scores."""

    vocabulary: int
    hidden: int
    tokens: int


def check(size: Size, dtypes: tuple[torch.dtype, ...], device: torch.device) -> Iterator[Line]:
    """Two lines for each type and shape."""
    for dtype in dtypes:
        for shape in SHAPES:
            hidden, weight, ids = _draw(size, dtype, device)
            tiled = _tiled(hidden, weight, ids, shape)
            full = _full(hidden.double(), weight.double(), ids, shape)
            what = f"head, {str(dtype)[6:]}, {'soft cap' if shape.softcap else 'plain'}"
            errors = [_error(one, two) for one, two in zip(tiled, full, strict=True)]
            yield Line(f"{what}: error of logprobs, entropy", max(errors[:2]), VALUES)
            yield Line(f"{what}: error of gradients", max(errors[2:]), GRADIENTS[dtype])


def _draw(size: Size, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight, and the wanted ids of every position."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(size.tokens, size.hidden, generator=generator)
    weight = torch.randn(size.vocabulary, size.hidden, generator=generator) * size.hidden**-0.5
    ids = torch.randint(0, size.vocabulary, (size.tokens, 1 + K), generator=generator)
    return hidden.to(device, dtype), weight.to(device, dtype), ids.to(device)


def _tiled(hidden: Tensor, weight: Tensor, ids: Tensor, shape: LogitShape) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in (hidden, weight)]
    scores = score_terms(
        leaves[0],
        Head(leaves[1], shape=shape),
        torch.arange(len(ids), device=ids.device),
        ids[:, 0],
        top_ids_TK=ids[:, 1:],
        tile_logits=3 * weight.shape[0] * len(ids) // 8,
    )
    logprobs = torch.cat([scores.logprob_T[:, None], scores.top_logprob_TK], 1)
    return [logprobs, scores.entropy_T, *torch.autograd.grad(logprobs, leaves, _weights(logprobs))]


def _full(hidden: Tensor, weight: Tensor, ids: Tensor, shape: LogitShape) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in (hidden, weight)]
    logits = leaves[0] @ leaves[1].T
    if shape.softcap is not None:
        logits = shape.softcap * (logits / shape.softcap).tanh()
    every = (logits / shape.temperature).log_softmax(-1)
    logprobs, entropy = every.gather(1, ids), -(every.exp() * every).sum(-1)
    return [logprobs, entropy, *torch.autograd.grad(logprobs, leaves, _weights(logprobs))]


def _weights(logprobs: Tensor) -> Tensor:
    """A gradient of the logprobs, the same on every device."""
    drawn = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(1))
    return drawn.to(logprobs.device, logprobs.dtype)


def _error(found: Tensor, oracle: Tensor) -> float:
    return float((found.detach().double() - oracle.detach()).norm() / oracle.detach().norm())
