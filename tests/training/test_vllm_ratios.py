"""Truncated sampling on the real vLLM: the trainer's ratio is 1, because both sides know the set.

    server, top_p 0.9, top_k 20  --turns with candidate sets-->  row  --policy-->  p / q

The policy is the very model that is served, so at staleness 0 every ratio is 1 but for rounding.
Without the sets the trainer normalises over the full vocabulary, and the mean ratio is the mass
that truncation kept: this is what the sets are for.
"""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncgrpo.config import Facts, load_recipe, resolve
from asyncgrpo.metrics.values import Aggregate
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Sample, SampleKey, SamplingParams, TurnRequest
from asyncgrpo.rollout.group import CandidateSets, TopLogprobs, TurnRecord
from asyncgrpo.rollout.sampling.samples import draft_samples
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource
from asyncgrpo.server.capabilities import check, probe
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.sampling import sampling_params
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from tests.server.vllm_process import running_vllm
from tests.training.fixtures import loss_settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

MODEL = str(Path(__file__).parents[1] / "assets" / "sums-model")
TEMPERATURE = 1.3  # a model this sure of itself leaves nothing to cut at 1
RECIPE = f"""
model: {{name_or_path: {MODEL}}}
data: {{path: prompts.jsonl}}
rollout:
  rewards: [rewards:one]
  max_completion_length: 40
  temperature: {TEMPERATURE}
  top_p: 0.9
  top_k: 20
server: {{max_model_len: 256, devices: [], env: {{VLLM_CPU_KVCACHE_SPACE: "1"}}}}
trainer: {{max_steps: 5}}
"""
NUM_TURNS = 192
MEAN = "sampling/importance_sampling_ratio/mean"


@pytest.fixture(scope="module", name="config")
def _config(tmp_path_factory: pytest.TempPathFactory):
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    recipe.write_text(RECIPE)
    loaded = load_recipe(recipe, paths_must_exist=False)
    return resolve(loaded, Facts(recipe_name="ratios", working_dir=str(recipe.parent))).config


@pytest.fixture(scope="module", name="url")
def _url(config, tmp_path_factory: pytest.TempPathFactory):
    with running_vllm(config, tmp_path_factory.mktemp("vllm") / "server.log", {}) as url:
        yield url


@pytest.fixture(scope="module", name="policy")
def _policy() -> PolicyModel:
    return PolicyModel(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval())


def prompt(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, 60, 12).astype(np.int32)


async def turns(url: str, sampling: SamplingParams, *, endpoint: Endpoint = Endpoint.PACKED):
    source = CandidateSource.TOP
    async with ServerClient(url) as client:
        requests = [TurnRequest(MODEL, prompt(s), 40, s, sampling) for s in range(NUM_TURNS)]
        answers = [client.generate_once(request, endpoint, source) for request in requests]
        return list(zip(requests, await asyncio.gather(*answers), strict=True))


def ratio(policy: PolicyModel, sampled, *, with_sets: bool = True) -> Aggregate:
    """The trainer's ratio of all tokens of these turns, as a micro-batch of one row."""
    samples: list[Sample] = []
    for index, (request, turn) in enumerate(sampled):
        record = TurnRecord(
            prompt_ids=request.prompt_ids,
            output_ids=turn.output_ids,
            output_log_probs=turn.logprobs,
            output_sampler_logprobs=TopLogprobs(turn.top_ids, turn.top_logprobs),
            output_sampling_mask=(
                CandidateSets(turn.candidate_ids, turn.candidate_counts) if with_sets else None
            ),
        )
        drafts = draft_samples([record], num_top_logprobs=request.sampling.num_logprobs).drafts
        key = SampleKey(0, 0, index)
        samples += [msgspec.structs.replace(draft, key=key, advantage=1.0) for draft in drafts]
    row = RowTensors.from_row(build_row(samples), "cpu")
    with torch.no_grad():
        scores = policy(row, temperature=TEMPERATURE)
        loss, sums = policy_loss(scores, row, loss_settings(), row.num_trained)
    assert torch.isfinite(loss)
    return sums.aggregates()[MEAN]


def mean(found: Aggregate) -> float:
    return found.total / found.weight


async def test_the_mean_ratio_is_one_with_the_sets_and_the_kept_mass_without(url, policy, config):
    sampled = await turns(url, sampling_params(config))
    assert sum(turn.output_ids.size for _, turn in sampled) > 1000
    corrected, biased = (ratio(policy, sampled, with_sets=sets) for sets in (True, False))
    assert mean(corrected) == pytest.approx(1, abs=1e-3)
    assert corrected.low == pytest.approx(1, abs=1e-2)
    assert corrected.high == pytest.approx(1, abs=1e-2)
    assert mean(biased) < 0.97


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize(
    "truncation",
    [{"top_k": 3}, {"top_k": 20, "min_p": 0.1}, {"top_k": 4, "top_p": 0.8, "min_p": 0.02}],
    ids=["top_k", "min_p", "all three"],
)
async def test_so_it_is_for_every_truncation_through_every_endpoint(
    url, policy, endpoint, truncation
):
    sampling = SamplingParams(temperature=TEMPERATURE, num_logprobs=8, **truncation)
    sampled = await turns(url, sampling, endpoint=endpoint)
    corrected, biased = (ratio(policy, sampled, with_sets=sets) for sets in (True, False))
    assert mean(corrected) == pytest.approx(1, abs=1e-3)
    assert mean(biased) < 0.99


async def test_the_probe_finds_the_source_on_the_server_that_the_command_starts(url, config):
    async with ServerClient(url) as client:
        found = await probe(client, config)
    assert found.candidates is CandidateSource.TOP
    assert check(found, config) == ((), ())
