"""B14: what top logprobs cost the API server of a real vLLM on CPU, packed and as JSON.

    48 requests side by side, 256 tokens each, K = 0 and 8, through each endpoint in turn

The engine computes in a process of its own, so the CPU time of the API server's process is what
HTTP, decoding and encoding take; it is a property of vLLM and the endpoint, not of the model. Wall
time moves with whatever else runs here, by tens of percent: speeds are compared within blocks of
neighbours (K = 0, 8, 8, 0), in which a steady drift cancels, and the median of the blocks counts.
On a busy machine that still moves; the CPU per token beside it, server and engine together, does so
less.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from asyncgrpo.config import Config, derive, known
from asyncgrpo.config.facts import local_facts
from asyncgrpo.errors import ServerError
from asyncgrpo.launch import machine
from asyncgrpo.launch.plan import Machine, plan_servers
from asyncgrpo.launch.processes.logs import tail
from asyncgrpo.launch.processes.process import Process
from asyncgrpo.records import SamplingParams, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient
from tests.bench.figure import Figure

MODEL = Path("recipes/demo/base-model")  # 0.8 M parameters: the engine is no excuse
REQUESTS, PROMPT, TOKENS = 48, 32, 256
CONTEXT = PROMPT + TOKENS
READY_S, GRACE_S = 300.0, 20.0
K = 8
MOST_US_PER_TOKEN = 80.0  # of the API server's CPU, packed at K
LEAST_SPEED = 0.95  # tokens/s at K over tokens/s at 0, packed
BLOCK = (0, K, K, 0)
# name -> endpoint, blocks: only what has a bar is worth many
ENDPOINTS = {"packed": (Endpoint.PACKED, 10), "generate": (Endpoint.GENERATE, 2)}


@dataclass(frozen=True)
class Burst:
    """All requests at once, measured."""

    tokens: int
    wall_s: float
    server_cpu_s: float
    engine_cpu_s: float
    client_cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


Bursts = dict[tuple[str, int], list[Burst]]  # by endpoint and K, in order


def measure() -> list[Figure]:
    """CPU of the API server and of the client per token, and tokens/s.

    Raises:
        ServerError: vLLM does not start.
    """
    with tempfile.TemporaryDirectory(prefix="asyncgrpo-bench-") as folder:
        return figures(asyncio.run(_measure(Path(folder))))


def figures(bursts: Bursts) -> list[Figure]:
    """Medians of the bursts, and the two that have a bar."""
    found: list[Figure] = []
    for (how, k), seen in bursts.items():
        per_token = {
            "API server": [burst.server_cpu_s / burst.tokens for burst in seen],
            "engine": [burst.engine_cpu_s / burst.tokens for burst in seen],
            "client": [burst.client_cpu_s / burst.tokens for burst in seen],
        }
        for process, seconds in per_token.items():
            judged = (how, k, process) == ("packed", K, "API server")
            what = f"{how}, K = {k}: {process} CPU per token"
            median = 1e6 * statistics.median(seconds)
            bar = MOST_US_PER_TOKEN if judged else None
            found.append(Figure("B14", what, median, "us", bar, at_least=False))
        speed = statistics.median(burst.tokens_per_s for burst in seen)
        found.append(Figure("B14", f"{how}, K = {k}", speed, "tokens/s"))
    for how in ENDPOINTS:
        share = statistics.median(
            _seconds(without) / _seconds(with_top)
            for without, with_top in zip(_twos(bursts[how, 0]), _twos(bursts[how, K]), strict=True)
        )
        cpu = [
            statistics.median((b.server_cpu_s + b.engine_cpu_s) / b.tokens for b in bursts[how, k])
            for k in (0, K)
        ]
        what = f"{how}: CPU of server and engine per token at K = 0 over K = {K}"
        found.append(Figure("B14", what, cpu[0] / cpu[1], ""))
        bar = LEAST_SPEED if how == "packed" else None
        found.append(Figure("B14", f"{how}: tokens/s at K = {K} over K = 0", share, "", bar))
    return found


async def _measure(folder: Path) -> Bursts:
    config = _configuration(_endless_model(folder))
    port = int(known(config.server.port))
    cores = Machine(sys.executable, machine.cpu_cores(), (port,), environ=dict(os.environ))
    (spec,) = plan_servers(config, cores)
    process = await Process.start(spec, folder / "server.log", grace_s=GRACE_S)
    try:
        async with ServerClient(f"http://127.0.0.1:{port}") as client:
            await client.wait_ready(READY_S, lambda *_: _check_alive(process))
            return await _bursts(client, _Server.below(process), config.model.name_or_path)
    finally:
        await process.stop()


async def _bursts(client: ServerClient, server: "_Server", model: str) -> Bursts:
    bursts: Bursts = defaultdict(list)
    for how, (endpoint, blocks) in ENDPOINTS.items():
        for block in range(blocks + 1):
            for k in BLOCK:
                burst = await _burst(client, server, endpoint, _requests(model, k, block))
                if block:  # the first warms the server up
                    bursts[how, k].append(burst)
    return bursts


async def _burst(
    client: ServerClient, server: "_Server", endpoint: Endpoint, requests: list[TurnRequest]
) -> Burst:
    api_s, engine_s = _cpu_s(server.api), _cpu_s(server.engine)
    client_s, start = time.process_time(), time.monotonic()
    turns = await asyncio.gather(*(client.generate_once(one, endpoint) for one in requests))
    return Burst(
        tokens=sum(turn.output_ids.size for turn in turns),
        wall_s=time.monotonic() - start,
        server_cpu_s=_cpu_s(server.api) - api_s,
        engine_cpu_s=_cpu_s(server.engine) - engine_s,
        client_cpu_s=time.process_time() - client_s,
    )


def _twos(bursts: list[Burst]) -> list[list[Burst]]:
    """Those of one K, block by block."""
    return [bursts[first : first + 2] for first in range(0, len(bursts), 2)]


def _seconds(bursts: Sequence[Burst]) -> float:
    """Wall time per token of some bursts."""
    return sum(burst.wall_s for burst in bursts) / sum(burst.tokens for burst in bursts)


def _requests(model: str, k: int, block: int) -> list[TurnRequest]:
    """Prompts that differ, so that no cache serves one for another; the same within a block."""
    prompts = np.random.default_rng(block).integers(5, 60, (REQUESTS, PROMPT)).astype(np.int32)
    sampling = SamplingParams(num_logprobs=k)
    return [TurnRequest(model, ids, TOKENS, seed, sampling) for seed, ids in enumerate(prompts)]


def _configuration(model: Path) -> Config:
    config = Config.model_validate(
        {
            "model": {"name_or_path": str(model)},
            "server": {
                "max_model_len": CONTEXT,
                "devices": (),
                "port": machine.free_port("127.0.0.1"),
            },
            "run": {"name": "bench", "dir": str(model.parent)},
        }
    )
    return derive(config, local_facts(config, cuda_count=0, recipe_name="bench")).config


def _endless_model(folder: Path) -> Path:
    """The model, with no token that ends a turn and with room for a prompt and its answer."""
    model = folder / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("generation_config.json"))
    _rewrite(model / "config.json", eos_token_id=None, max_position_embeddings=CONTEXT)
    _rewrite(model / "tokenizer_config.json", eos_token=None, model_max_length=CONTEXT)
    return model


def _rewrite(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


class _Server(NamedTuple):
    """A server's two processes."""

    api: psutil.Process  # serves HTTP
    engine: psutil.Process  # computes

    @classmethod
    def below(cls, guard: Process) -> "_Server":
        """Those below the guard that was started: the engine is the largest below the API's."""
        api = psutil.Process(guard.pid).children()[0]
        return cls(api, max(api.children(), key=lambda child: child.memory_info().rss))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _check_alive(process: Process) -> None:
    if not process.running:
        said = "\n".join(tail(process.log)[-20:])
        raise ServerError(f"vLLM does not start, so B14 cannot be measured:\n{said}")
