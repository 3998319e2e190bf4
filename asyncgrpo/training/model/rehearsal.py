"""A rehearsal before training: two sequences scored as a row and by the model.

    a b c d e f   the model's own forward, one by one  -->  logprobs     equal, or the model is
    a b c x y     one packed row                       -->  logprobs     refused by name

What no list of architectures can tell shows here: a head with more to it than a matrix, attention
to later tokens, logits scaled by a rule of their own, layers that drop what a row brings. Then the
same in training mode, where dropout and noise show: the sampler has none.

Letters: T terms of the row.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncgrpo.errors import ConfigError, UserError
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample, SampleKey
from asyncgrpo.training.model.architecture import unwrap_peft
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.model import num_embeddings
from asyncgrpo.training.model.row_tensors import RowTensors

KEY: Final = "model.name_or_path"
NUM_SHARED, NUM_OWN = 6, (5, 3)  # tokens both begin with, and those of each alone
NOISE: Final = ("drop", "jitter")  # what it is called in transformers' configurations


class _Limits(NamedTuple):
    """Mean differences of logprobs that equal computations may come to."""

    between_paths: float  # of the model's own forward and of a row's
    between_modes: float  # of evaluation and training, by the same path


LIMITS, LIMITS_16_BITS = _Limits(1e-2, 1e-4), _Limits(0.3, 0.1)


# docs/decisions/0037
@torch.no_grad()
def rehearse(model: nn.Module, device: torch.device) -> None:
    """Checks that a packed row scores as its samples do alone; ends in training mode.

    Args:
        model: A causal LM of transformers with all of its weights, or a peft model around one.
        device: Where it is.

    Raises:
        ConfigError: It cannot score rows, or not as it scores tokens itself, or not without noise.
    """
    causal_lm = unwrap_peft(model)
    name = type(causal_lm).__name__
    limits = LIMITS if torch.finfo(causal_lm.dtype).bits >= 32 else LIMITS_16_BITS
    samples = _samples(causal_lm)

    model.eval()
    causal_lm.set_attn_implementation("eager")
    alone_T = _attempt(name, "cannot score plain tokens", lambda: _alone(model, samples, device))
    if not alone_T.isfinite().all():
        raise ConfigError(
            f"{KEY}: {name} gives logprobs that are not finite: the weights that were loaded, or "
            f"what model.dtype makes of them, are not"
        )
    scorer = PolicyModel(model, router_aux_loss_coef=0.0)

    def packed() -> Tensor:
        return _packed(scorer, samples, device)

    packed_T = _attempt(name, "cannot run packed rows", packed)
    difference = _mean_difference(alone_T, packed_T)
    if not difference <= limits.between_paths:
        raise ConfigError(
            f"{KEY}: {name} does not score a packed row as it scores the samples alone (logprobs "
            f"differ by {difference:.2g} on average), so it cannot train here; name a decoder-only "
            f"model that sees earlier tokens only and whose head is one matrix"
        )
    _train_but_for_adapter_dropout(model)
    difference = _mean_difference(packed_T, _attempt(name, "cannot run packed rows", packed))
    if not difference <= limits.between_modes:
        raise ConfigError(
            f"{KEY}: {name} scores tokens otherwise in training (logprobs differ by "
            f"{difference:.2g} on average): it has dropout or other noise, the sampler has none, "
            f"and its ratios would be biased; {_remedy(causal_lm)}"
        )
    model.train()


def _samples(causal_lm: PreTrainedModel) -> list[Sample]:
    """Two sequences of one beginning, without tokens that mean something of their own."""
    vocabulary = np.arange(num_embeddings(causal_lm), dtype=np.int32)
    allowed = np.setdiff1d(vocabulary, list(_special_ids(causal_lm.config.to_dict())))
    rng = np.random.default_rng(0)
    shared = rng.choice(allowed, NUM_SHARED)
    return [
        _sample(index, np.concatenate([shared, rng.choice(allowed, count)]))
        for index, count in enumerate(NUM_OWN)
    ]


def _sample(index: int, input_ids: np.ndarray) -> Sample:
    trained = np.ones(input_ids.size, np.uint8)
    trained[0] = 0
    no_logprobs = np.zeros(input_ids.size, np.float32)
    return Sample(SampleKey(0, 0, index), input_ids, trained, no_logprobs, 0.0, 0)


def _special_ids(config: dict[str, Any]) -> Iterator[int]:
    """Ids that a configuration names: of padding, of images."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _special_ids(cast("dict[str, Any]", value))
        elif str(key).endswith(("_token_id", "_token_index")):
            named = cast("list[Any]", value if isinstance(value, list) else [value])
            yield from (each for each in named if isinstance(each, int))


def _alone(model: nn.Module, samples: list[Sample], device: torch.device) -> Tensor:
    """Logprobs by the model's own forward and head, one sample after the other."""
    parts: list[Tensor] = []
    for sample in samples:
        ids = torch.from_numpy(sample.input_ids).to(device, torch.int64)
        logits: Tensor = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        parts.append(wide.log_softmax(-1).gather(1, ids[1:, None])[:, 0])
    return torch.cat(parts)


def _packed(scorer: PolicyModel, samples: list[Sample], device: torch.device) -> Tensor:
    """The same logprobs, in the same order, from a row of all samples."""
    row = build_row(samples)
    logprob_T = scorer(RowTensors.from_row(row, device)).logprob_T
    index_M = np.array([key.index for key in row.sample_keys])
    order = np.argsort(index_M[row.term_sample_T], kind="stable")
    return logprob_T[torch.from_numpy(order).to(device)]


def _attempt(name: str, fails: str, compute: Callable[[], Tensor]) -> Tensor:
    """Turns an error of a foreign model into one with its meaning here."""
    try:
        return compute()
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ConfigError(
            f"{KEY}: {name} {fails}: {type(error).__name__}: {lines[0] if lines else 'no message'}"
        ) from error


def _mean_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().mean())


def _train_but_for_adapter_dropout(model: nn.Module) -> None:
    """Sets training mode without the adapter's dropout, which has its own key."""
    model.train()
    for name, module in model.named_modules():
        if "lora_dropout" in name.split("."):
            module.eval()


def _remedy(causal_lm: PreTrainedModel) -> str:
    config: dict[str, Any] = causal_lm.config.get_text_config().to_dict()
    found = [
        f"{key}: 0.0"
        for key, value in config.items()
        if isinstance(value, float) and value and any(word in key for word in NOISE)
    ]
    if not found:
        return "name another model"
    return f"set model.init_kwargs={{{', '.join(found)}}}"
