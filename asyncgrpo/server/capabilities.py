"""The capabilities of a running server, compared with what the run needs.

    ServerClient  --probe-->  Capabilities  --check-->  StartFindings(errors, warnings)

`probe` asks rather than compares version numbers, and sends a real request: a server that answers
/health may still die of its first one. `check` is pure; each message names the flag to change.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asyncgrpo.config import Config, known
from asyncgrpo.errors import ServerError
from asyncgrpo.records import SamplingParams, Turn, TurnRequest
from asyncgrpo.server.api import Endpoint, ServedModel, ServerInfo
from asyncgrpo.server.candidates import CandidateSource, is_truncated
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.command import MIDDLEWARE, SPARE_LOGPROBS, max_lora_rank, max_loras
from asyncgrpo.server.failures import (
    EngineDeadError,
    RouteMissingError,
    StatusError,
    TooManyLogprobsError,
)
from asyncgrpo.server.load import ServerLoad
from asyncgrpo.server.sampling import sampling_params
from asyncgrpo.server.vllm_plugin import BACKEND as FOLDER_BACKEND

PROBE_PROMPT = np.array([1, 2, 3], np.int32)
PROBE_TOKENS = 2
NO_ADAPTER = "asyncgrpo-probe"  # a name nobody loads
# Not one of these endpoints, rather than a server that fails.
_ENDPOINT_MISSING = (403, 404, 405, 501)


@dataclass(frozen=True)
class Capabilities:
    """The findings of `probe` about one server."""

    base_url: str
    endpoint: Endpoint  # the best that answered
    candidates: CandidateSource  # the best that it offers; NONE without truncated sampling
    models: tuple[ServedModel, ...]
    info: ServerInfo | None  # None = without VLLM_SERVER_DEV_MODE=1
    load: ServerLoad | None  # None = without /metrics
    lora_routes: bool

    @property
    def block_size(self) -> int | None:
        """Tokens per KV block, as far as the server says."""
        reported = self.load.block_size if self.load else None
        return reported or (self.info.block_size if self.info else None)


class StartFindings(NamedTuple):
    """Errors keep the run from starting; warnings are for its user to know."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


# Asking


async def probe(client: ServerClient, config: Config) -> Capabilities:
    """Ask one healthy server what it can do.

    From here on `client` uses its best endpoint.

    Raises:
        ServerError: no endpoint generates, or the engine died of the attempt.
    """
    await _release(client)
    models = await client.models()
    # Side by side: the first turn and the first /server_info each take a server seconds.
    endpoint, info, load, lora_routes = await asyncio.gather(
        choose_endpoint(client, _policy(config, models), sampling_params(config)),
        _info(client),
        _load(client),
        _has_lora_routes(client),
    )
    candidates = client.candidates
    return Capabilities(client.base_url, endpoint, candidates, models, info, load, lora_routes)


async def _release(client: ServerClient) -> None:
    """Resume a server that a trainer left paused, killed while it published.

    Paused with `keep` a server is healthy, takes requests, and never answers one.
    """
    with contextlib.suppress(RouteMissingError):  # `check` says what turns the route on
        # docs/decisions/0013
        await client.resume()


async def choose_endpoint(client: ServerClient, policy: str, sampling: SamplingParams) -> Endpoint:
    """Have `client` generate through the first endpoint that answers a seeded request.

    Under truncated sampling it also learns where candidate sets come from. The requests warm the
    server up, which compiles for seconds at the first one.

    Raises:
        ServerError: none answers.
    """
    request = TurnRequest(policy, PROBE_PROMPT, PROBE_TOKENS, seed=0, sampling=sampling)
    refusals: list[str] = []
    for endpoint in Endpoint:
        try:
            turn = await client.generate_once(request, endpoint)
        except EngineDeadError as error:
            raise EngineDeadError(
                f"{error}. It died of the first request: on CPU vLLM needs attention heads of 32, "
                "64, ... values (head_dim)"
            ) from error
        except StatusError as error:
            if error.status not in _ENDPOINT_MISSING:
                raise
            refusals.append(str(error))
            continue
        if not 1 <= turn.output_ids.size <= PROBE_TOKENS:
            raise ServerError(
                f"{client.base_url}{endpoint.value} answered {turn.output_ids.size} tokens to a "
                f"request for {PROBE_TOKENS}"
            )
        client.endpoint = endpoint
        client.candidates = await _candidate_source(client, request, turn)
        return endpoint
    raise ServerError(f"{client.base_url} generates through no endpoint:\n" + "\n".join(refusals))


async def _candidate_source(
    client: ServerClient, request: TurnRequest, turn: Turn
) -> CandidateSource:
    """The best source of candidate sets; `turn` answers a request without one."""
    if not is_truncated(request.sampling):
        return CandidateSource.NONE
    if turn.candidate_ids is not None:
        return CandidateSource.MASK
    if not request.sampling.top_k:
        return CandidateSource.NONE
    try:
        await client.generate_once(request, client.endpoint, CandidateSource.TOP)
    except TooManyLogprobsError:
        return CandidateSource.NONE
    return CandidateSource.TOP


def _policy(config: Config, models: tuple[ServedModel, ...]) -> str:
    """A name that the server serves: the one the run asks for, or else another."""
    names = [model.name for model in models if model.parent is None]
    wanted = config.model.name_or_path
    return wanted if wanted in names or not names else names[0]


async def _info(client: ServerClient) -> ServerInfo | None:
    try:
        return await client.server_info()
    except RouteMissingError:
        return None


async def _load(client: ServerClient) -> ServerLoad | None:
    try:
        return await client.load()
    except StatusError:
        return None


async def _has_lora_routes(client: ServerClient) -> bool:
    try:
        await client.unload_adapter(NO_ADAPTER)
    except RouteMissingError:
        return False
    except StatusError:
        return True
    return True


class ServedFacts(NamedTuple):
    """The facts of running servers that open values of the configuration depend on."""

    max_model_len: int | None  # the longest sequence that every server takes, as far as they say
    adapters_refused: str | None  # why they take merged weights alone; None = they take adapters


def served_facts(found: Sequence[Capabilities], config: Config) -> ServedFacts:
    """The facts of all servers together."""
    limits = [
        model.max_model_len
        for capabilities in found
        for model in capabilities.models
        if model.max_model_len is not None
    ]
    adapter = known(config.sync.backend) == "adapter"
    return ServedFacts(
        min(limits, default=None), _adapters_refused(found, config) if adapter else None
    )


def _adapters_refused(found: Sequence[Capabilities], config: Config) -> str | None:
    """The reason to publish merged weights; None where adapters work, or merged weights do not."""
    refusals: list[str] = []
    for server in found:
        if server.info is None or _folder_errors(server.info):
            return None
        refusals += [f"{server.base_url}: {e}" for e in _lora_errors(server, server.info, config)]
    return "; ".join(refusals) or None


# Comparing


def check(found: Capabilities, config: Config) -> StartFindings:
    """Compare what the server does with what the run needs."""
    errors = [*_model_errors(found, config), *_info_errors(found, config)]
    return StartFindings(
        tuple(f"{found.base_url}: {message}" for message in errors),
        tuple(f"{found.base_url}: {message}" for message in _warnings(found, config)),
    )


def _model_errors(found: Capabilities, config: Config) -> list[str]:
    wanted = config.model.name_or_path
    served = [model for model in found.models if model.parent is None]
    match = next((model for model in served if model.name == wanted), None)
    if match is None:
        names = ", ".join(model.name for model in served) or "nothing"
        return [
            (
                f"vLLM serves {names}, not {wanted}: start it with --served-model-name "
                f"{wanted}, or set model.name_or_path"
            )
        ]
    limit, needed = match.max_model_len, known(config.server.max_model_len)
    if limit is not None and limit < needed:
        return [
            (
                f"vLLM takes {limit} tokens of context; server.max_model_len is {needed}: start it "
                f"with --max-model-len {needed}, or lower server.max_model_len"
            )
        ]
    return []


def _info_errors(found: Capabilities, config: Config) -> list[str]:
    info = found.info
    if info is None:
        return ["/server_info is missing: start vLLM with VLLM_SERVER_DEV_MODE=1"]
    errors: list[str] = []
    if info.logprobs_mode != "processed_logprobs":
        errors.append(
            f"vLLM reports {info.logprobs_mode}, which are not those it sampled from: start it "
            "with --logprobs-mode processed_logprobs"
        )
    wanted = config.loss.requested_logprobs
    if found.endpoint is Endpoint.GENERATE and found.candidates is not CandidateSource.TOP:
        wanted += SPARE_LOGPROBS
    if 0 <= info.max_logprobs < wanted:
        errors.append(
            f"vLLM reports at most {info.max_logprobs} logprobs; loss.num_sampler_logprobs "
            f"{config.loss.num_sampler_logprobs} needs {wanted}: start it with --max-logprobs "
            f"{wanted}"
        )
    adapter = known(config.sync.backend) == "adapter"
    return errors + (_lora_errors(found, info, config) if adapter else _folder_errors(info))


def _lora_errors(found: Capabilities, info: ServerInfo, config: Config) -> list[str]:
    if info.max_loras is None or info.max_lora_rank is None:
        return ["vLLM serves no LoRA adapters: start it with --enable-lora"]
    errors: list[str] = []
    slots, rank = max_loras(config), max_lora_rank(config)
    if info.max_loras < slots:
        errors.append(
            f"vLLM serves {info.max_loras} LoRA slots; max_staleness "
            f"{config.rollout.max_staleness} needs {slots}: start it with --max-loras {slots}"
        )
    if info.max_lora_rank < rank:
        errors.append(
            f"vLLM takes LoRA rank {info.max_lora_rank}; the adapter needs {rank}: start it with "
            f"--max-lora-rank {rank}"
        )
    if not found.lora_routes:
        errors.append(
            "vLLM loads no adapters at run time: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        )
    return errors


def _folder_errors(info: ServerInfo) -> list[str]:
    if info.weight_transfer_backend == FOLDER_BACKEND:
        return []
    return [
        (
            f"vLLM's weight transfer is {info.weight_transfer_backend or 'off'}; sync.backend "
            f'folder needs --weight-transfer-config \'{{"backend": "{FOLDER_BACKEND}"}}\''
        )
    ]


def _warnings(found: Capabilities, config: Config) -> list[str]:
    warnings: list[str] = []
    trained = config.model.dtype
    if found.info is not None and trained not in {"auto", found.info.dtype}:
        warnings.append(
            f"vLLM computes in {found.info.dtype} and the trainer in {trained}: their logprobs "
            f"differ by rounding. Start vLLM with --dtype {trained}"
        )
    if found.endpoint is not Endpoint.PACKED:
        warnings.append(
            f"generating through {found.endpoint.value}, which is slower with top logprobs: start "
            f"vLLM with --middleware {MIDDLEWARE}"
        )
    top_k = config.rollout.top_k
    if is_truncated(sampling_params(config)) and found.candidates is CandidateSource.NONE:
        warnings.append(
            "vLLM does not tell what tokens are drawn from under rollout.top_k, top_p and min_p, "
            "so the trainer takes the full vocabulary and every ratio is biased: start vLLM with "
            f"--max-logprobs {top_k}, or leave the three out"
        )
    if found.load is None:
        warnings.append("no /metrics: the cap on rollouts is rollout.max_concurrent_rollouts")
    return warnings
