"""A resolved configuration, a fake server, and a client of it."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncgrpo.config import Config, Facts, load_recipe, resolve
from asyncgrpo.records import SamplingParams, TurnRequest
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.retries import Retries
from tests.fake_vllm import FakeServer

RECIPE = """
model: {name_or_path: fake}
data: {path: prompts.jsonl}
rollout: {rewards: [rewards:one], max_completion_length: 24}
server: {max_model_len: 256, devices: []}
trainer: {max_steps: 5}
"""
AT_ONCE = Retries(attempts=4, first_s=0.01, longest_s=0.02)

MakeConfig = Callable[..., Config]
MakeRequest = Callable[..., TurnRequest]


@pytest.fixture(name="make_config")
def _make_config(tmp_path: Path) -> MakeConfig:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)

    def make(*overrides: str) -> Config:
        loaded = load_recipe(recipe, overrides, paths_must_exist=False)
        return resolve(loaded, Facts(recipe_name="test", working_dir=str(tmp_path))).config

    return make


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where nobody listens, kept from everybody but a fake server given this number."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(name="fake")
def _fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture(name="client")
async def _client(fake: FakeServer):
    async with ServerClient(fake.url, retries=AT_ONCE) as client:
        yield client


@pytest.fixture(name="make_request")
def _make_request() -> MakeRequest:
    def make(
        *,
        policy: str = "fake",
        seed: int = 1,
        num_logprobs: int = 3,
        length: int = 5,
        tokens: int = 6,
    ) -> TurnRequest:
        prompt_ids = np.arange(10, 10 + length, dtype=np.int32) % 60
        return TurnRequest(
            policy, prompt_ids, tokens, seed, SamplingParams(num_logprobs=num_logprobs)
        )

    return make
