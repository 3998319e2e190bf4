"""A Gated DeltaNet hybrid on the real vLLM: starts on a CPU, lives under load, is the policy.

vLLM's CPU kernel takes heads of 128 in bfloat16, and no adapter on experts: folder sync.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3NextConfig

from asyncgrpo.config import Config, Facts, derive
from asyncgrpo.config.derive import ATTEST_TOLERANCE
from asyncgrpo.config.facts import has_delta_net
from asyncgrpo.records import TurnRequest
from asyncgrpo.server.capabilities import choose_endpoint
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.sampling import sampling_params
from asyncgrpo.training.model.forward import PolicyModel
from tests.server.vllm_process import running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

TOKENIZER = Path(__file__).parents[1] / "assets/sums-model"
VOCAB = 320
HYBRID = Qwen3NextConfig(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    max_position_embeddings=512,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    pad_token_id=0,
    eos_token_id=2,
    bos_token_id=None,
)


@pytest.fixture(scope="module", name="config")
def _config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("hybrid")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(HYBRID, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(folder)
    tree = {
        "model": {"name_or_path": str(folder)},
        "server": {"dtype": "bfloat16"},
        "sync": {"backend": "folder"},
    }
    facts = Facts(model_max_positions=512, recipe_name="hybrid", working_dir=str(folder))
    return derive(Config.model_validate(tree), facts).config


@pytest.fixture(scope="module", name="url")
def _url(config, tmp_path_factory: pytest.TempPathFactory):
    with running_vllm(config, tmp_path_factory.mktemp("vllm") / "server.log", {}) as url:
        yield url


async def test_long_seeded_prompts_at_once_are_answered(config, url):
    assert has_delta_net(config)
    name, sampling = config.model.name_or_path, sampling_params(config)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB, rng.integers(20, 400)).astype(np.int32) for _ in range(24)]
    requests = [TurnRequest(name, p, 32, seed, sampling) for seed, p in enumerate(prompts)]
    async with ServerClient(url) as client:
        await choose_endpoint(client, name, sampling)
        turns = await asyncio.gather(*(client.generate(request) for request in requests))
    assert len({tuple(turn.output_ids.tolist()) for turn in turns}) == len(requests)


async def test_it_serves_what_the_trainer_trains(config, url):
    name = config.model.name_or_path
    policy = PolicyModel(AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval())
    ids = np.random.default_rng(1).integers(3, VOCAB, 200).astype(np.int32)
    async with ServerClient(url) as client:
        served = await client.prompt_logprobs(name, ids)
    with torch.no_grad():
        expected = policy.sequence_logprobs(ids.tolist()).numpy()
    assert np.abs(served[1:] - expected).mean() < ATTEST_TOLERANCE["bfloat16"]
