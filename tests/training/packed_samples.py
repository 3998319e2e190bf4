"""Samples and tiny random models that several test files of the numeric core share."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from asyncgrpo.records import Sample, SampleKey

VOCABULARY = 61
K = 3


def make_sample(
    index: int, input_ids: Sequence[int], prompt_length: int, *, seed: int = 0, top: int = K
) -> Sample:
    """A sample whose tokens after the prompt are trained, with plausible sampler logprobs."""
    ids = np.array(input_ids, np.int32)
    rng = np.random.default_rng((seed, index))
    trained = np.zeros(ids.size, np.uint8)
    trained[prompt_length:] = 1
    top_ids = np.stack([rng.choice(VOCABULARY, top, replace=False) for _ in ids]).astype(np.int32)
    top_logprobs = np.log(rng.dirichlet(np.ones(top + 1), ids.size)[:, :top]).astype(np.float32)
    return Sample(
        key=SampleKey(0, 0, index),
        input_ids=ids,
        trained=trained,
        sampler_logprobs=np.where(trained, rng.normal(-4, 0.3, ids.size), 0).astype(np.float32),
        advantage=float(np.float32(rng.normal())),
        policy_version=0,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def tangled_samples() -> list[Sample]:
    """Nested forks, unequal lengths, one-token samples, fan-out 16, a prefix, equal samples."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> list[int]:
        return rng.integers(0, VOCABULARY, n).tolist()

    system, prompt, turn = draw(5), draw(9), draw(6)
    sequences = [(system + prompt + draw(int(rng.integers(1, 12))), 14) for _ in range(16)]
    sequences += [(system + prompt + turn + draw(n), 14) for n in (1, 4, 9)]
    sequences += [(system + draw(4) + turn, 9), (system + draw(30), 20)]
    sequences += [(sequences[17][0][:18], 14)]  # a prefix of another
    sequences += [sequences[3]]  # the same tokens twice
    sequences += [(draw(1), 1), (draw(1), 1), (draw(3), 1)]
    return [make_sample(i, ids, start) for i, (ids, start) in enumerate(sequences)]


def tiny_model(config: PretrainedConfig, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A random model whose norms compute in its own type, so that float64 is float64 throughout."""
    torch.manual_seed(0)
    has_images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto_class = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
    model = auto_class.from_config(config, attn_implementation="eager").to(dtype)
    if dtype == torch.float64:  # grouped matrix products know no float64
        model.set_experts_implementation("eager")
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            object.__setattr__(module, "forward", _plain_norm(module))
    return model


def _plain_norm(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    around_one = type(module).__name__.startswith(("Gemma", "Qwen3Next", "Qwen3_5"))
    eps: float = getattr(module, "eps" if around_one else "variance_epsilon")

    def forward(x: torch.Tensor) -> torch.Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        weight = module.get_parameter("weight")
        return scaled * ((1 + weight) if around_one else weight)

    return forward
