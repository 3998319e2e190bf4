"""A scriptable stand-in for vLLM: the endpoints used, with failures, latency and wrong answers.

    with FakeServer() as fake:                 in a thread of this process; `fake.state` scripts it
    python tests/fake_vllm.py --port 8000      as a process; POST /fake/script {"dead": true} does

The policy it serves is a rule instead of a network: which token is favoured depends on the token
before it and on the version of the weights, so that a server which ignores a load or serves an
older version is as visible here as on the real one. `expected_logprobs` is the rule.
"""

import argparse
import asyncio
import itertools
import random
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from asyncgrpo.server.lease import PATH as LEASE_PATH
from asyncgrpo.server.lease import Claim, Lease
from asyncgrpo.server.turns import WireSpan
from asyncgrpo.server.turns_json import ABSENT_LOGPROB
from asyncgrpo.server.turns_packed import PackedRequest, pack_answer

Script = Callable[[list[int], int], list[int]]  # prompt ids, seed -> output ids

FAVOUR, WAVE = 3.0, 0.5  # nats: how far the favoured token stands out, and the others vary
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DEV_ROUTES = (
    "/pause",
    "/resume",
    "/is_paused",
    "/server_info",
    "/reset_prefix_cache",
    "/weight_info",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
)


@dataclass
class FakeState:
    """The fake's models, its faults and its record of calls; may be changed at any time."""

    model: str = "fake"
    vocab_size: int = 64
    eos: int = 2
    max_model_len: int = 512
    max_logprobs: int = 20
    dtype: str = "float32"
    logprobs_mode: str = "processed_logprobs"
    enable_lora: bool = True
    max_loras: int = 6
    max_lora_rank: int = 16
    weight_transfer_backend: str | None = "folder"
    block_size: int = 16
    kv_tokens: int = 65536
    dev_mode: bool = True
    packed: bool = True  # the middleware with the packed endpoint and the lease
    seconds_ahead: float = 0.0  # of the lease's clock
    scale_out: bool = True
    lists_masks: bool = False  # --return-sampling-mask
    api_key: str | None = None

    kv_usage: float | None = None  # what /metrics says; None = by what runs
    script: Script | None = None  # None = sample from the rule
    latency_s: float = 0.0
    hold_until: int = 0  # generations are answered once as many have run at the same time
    ready_after: int = 0  # /health answers 503 this many times first
    fail_next: list[int] = field(default_factory=list)  # statuses of the next generations
    fail_control: list[int] = field(default_factory=list)  # and of the next control calls
    disconnect_next: int = 0  # generations whose connection is closed before the body
    half_next: int = 0  # ... in the middle of it
    garbage_next: int = 0  # ... whose body is no answer
    wrong_lengths_next: int = 0  # ... with one logprob too few
    hide_adapters: int = 0  # "No adapter found" this many times, as on a slow mount
    ignore_loads: bool = False  # answers 200 and keeps serving the weights it has
    dead: bool = False  # the engine process is gone

    adapters: dict[str, str] = field(default_factory=dict)  # name -> path
    versions: dict[str, int] = field(default_factory=dict)  # name -> version of its weights
    label: str = "default"  # of the weights of the base model
    paused: bool = False
    updating: bool = False
    running: int = 0
    most_running: int = 0
    generated_tokens: int = 0
    requests: list[tuple[str, int]] = field(default_factory=list)  # generations: (model, seed)
    calls: list[str] = field(default_factory=list)  # control calls, by path
    updates: list[dict[str, Any]] = field(default_factory=list)  # update_info of each


# The rule


def logprobs_after(token: int, version: int, vocab_size: int) -> np.ndarray:
    """Logprobs of all tokens after `token` under weights of `version`."""
    # The wave makes every logprob depend on the version, and no two of them equal.
    logits_V = WAVE * np.sin(1.7 * np.arange(vocab_size) + 2.3 * token + 0.9 * version)
    logits_V[(7 * token + 3 * version + 1) % vocab_size] += FAVOUR
    return logits_V - np.log(np.exp(logits_V).sum())


def truncated(logprobs_V: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Logprobs over what the three leave, in vLLM's order: min_p, top_k, top_p; -inf outside."""
    probs_V = np.exp(logprobs_V)
    kept_V = probs_V >= min_p * probs_V.max()
    order = np.argsort(-probs_V)
    if top_k:
        kept_V[order[top_k:]] = False
    probs_V = np.where(kept_V, probs_V, 0) / probs_V[kept_V].sum()
    before = np.concatenate([[0.0], np.cumsum(probs_V[order])[:-1]])
    probs_V[order[before >= top_p]] = 0
    with np.errstate(divide="ignore"):
        return np.log(probs_V / probs_V.sum())


def expected_logprobs(token_ids: Sequence[int], version: int, vocab_size: int = 64) -> np.ndarray:
    """The answer of `prompt_logprobs`: entry i is of token i given token i - 1; entry 0 is 0."""
    pairs = itertools.pairwise(token_ids)
    rest = [logprobs_after(a, version, vocab_size)[b] for a, b in pairs]
    return np.array([0.0, *rest], np.float32)


def version_of(path: str) -> int:
    """The version of the weights in a published folder: its last number, policy-v000012 -> 12."""
    numbers = re.findall(r"\d+", Path(path).name)
    return int(numbers[-1]) if numbers else 0


# What the three endpoints share


@dataclass
class _Wanted:
    model: str
    prompt_ids: list[int]
    max_tokens: int
    seed: int
    num_logprobs: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass
class _Sampled:
    output_ids: list[int]
    mask: list[list[int]] | None
    columns: list[list[tuple[int, float]]]  # per position: the sampled token, then the top K
    finish_reason: str


def _truncation(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in ("top_k", "top_p", "min_p") if name in fields}


class _RefusalError(Exception):
    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind


class _NoRouteError(Exception):
    pass


class _CutResponse(Response):
    """Promises more bytes than it sends, so the connection breaks."""

    def __init__(self, body: bytes, promised: int) -> None:
        super().__init__(body, headers={"content-length": str(promised)})


class _Fake:
    def __init__(self, state: FakeState) -> None:
        self.state = state
        self._running = asyncio.Event()
        self._running.set()
        self._generators: dict[str, Callable[[bytes], Response]] = {
            "/asyncgrpo/generate": self._packed,
            "/inference/v1/generate": self._generate,
            "/v1/completions": self._completions,
        }
        self._controls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/v1/models": self._models,
            "/v1/load_lora_adapter": self._load_adapter,
            "/v1/unload_lora_adapter": self._unload_adapter,
            "/server_info": self._server_info,
            "/pause": self._pause,
            "/resume": self._resume,
            "/is_paused": lambda _: {"is_paused": self.state.paused},
            "/start_weight_update": self._start_update,
            "/update_weights": self._update_weights,
            "/finish_weight_update": self._finish_update,
            "/weight_info": lambda _: {"weight_version": self.state.label},
            "/reset_prefix_cache": lambda _: {"success": True},
            "/fake/script": self._script,
        }
        self._lease = Lease()

    async def handle(self, request: Request) -> Response:
        path = request.url.path
        try:
            return await self._route(path, request)
        except _NoRouteError:
            return JSONResponse({"detail": "Not Found"}, 404)
        except _RefusalError as refusal:
            info = {"message": refusal.message, "type": refusal.kind}
            return JSONResponse({"error": info | {"code": refusal.status}}, refusal.status)

    async def _route(self, path: str, request: Request) -> Response:
        state = self.state
        if path == "/health":
            not_yet = state.ready_after > 0
            state.ready_after -= not_yet
            return Response(status_code=503 if state.dead or not_yet else 200)
        if path == "/metrics":
            return PlainTextResponse(metrics_text(state))
        wanted = f"Bearer {state.api_key}" if state.api_key else None
        if wanted and request.headers.get("authorization") != wanted:
            raise _RefusalError(401, "missing or wrong API key", "Unauthorized")
        body = await request.body()
        if path in self._generators and (path != "/asyncgrpo/generate" or state.packed):
            return await self._generation(path, body)
        if path == LEASE_PATH and state.packed:
            claim = msgspec.json.decode(body, type=Claim)
            holder = self._lease.answer(claim, time.monotonic() + state.seconds_ahead)
            return JSONResponse(msgspec.to_builtins(holder))
        if path in self._controls and (state.dev_mode or path not in DEV_ROUTES):
            return self._control(path, body)
        raise _NoRouteError

    # Generation

    async def _generation(self, path: str, body: bytes) -> Response:
        state = self.state
        if path == "/inference/v1/generate" and not state.scale_out:
            message = "Scale-out endpoints are disabled. Restart with --enable-scale-out"
            raise _RefusalError(403, message, "PermissionDeniedError")
        if state.dead:
            raise _RefusalError(500, DEAD, "InternalServerError")
        if state.fail_next:
            raise _RefusalError(state.fail_next.pop(0), "scripted failure", "Scripted")
        state.running += 1
        state.most_running = max(state.most_running, state.running)
        try:
            await self._running.wait()
            await asyncio.sleep(state.latency_s)
            while state.most_running < state.hold_until:  # noqa: ASYNC110 - set from any thread
                await asyncio.sleep(0.01)
            response = self._generators[path](body)
        finally:
            state.running -= 1
        return self._spoil(response)

    def _spoil(self, response: Response) -> Response:
        state, full = self.state, bytes(response.body)
        if state.disconnect_next:
            state.disconnect_next -= 1
            return _CutResponse(b"", len(full))
        if state.half_next:
            state.half_next -= 1
            return _CutResponse(full[: len(full) // 2], len(full))
        if state.garbage_next:
            state.garbage_next -= 1
            return Response(b"<html>not an answer</html>")
        return response

    def _packed(self, body: bytes) -> Response:
        request = msgspec.msgpack.decode(body, type=PackedRequest)
        prompt_ids = np.frombuffer(request.prompt_ids, "<i4").tolist()
        wanted = _Wanted(
            request.model,
            prompt_ids,
            request.max_tokens,
            request.seed,
            request.num_logprobs,
            request.top_k,
            request.top_p,
            request.min_p,
        )
        sampled = self._sample(wanted)
        pairs = [pair for column in sampled.columns for pair in column]
        num_tokens = len(sampled.output_ids)
        packed = pack_answer(
            sampled.output_ids,
            [token for token, _ in pairs],
            [logprob for _, logprob in pairs],
            sampled.finish_reason,
            [WireSpan(self.state.label, 0, num_tokens)] if num_tokens else [],
            mask=sampled.mask,
        )
        return Response(packed, media_type="application/msgpack")

    def _generate(self, body: bytes) -> Response:
        request = msgspec.json.decode(body)
        params = request["sampling_params"]
        num_logprobs = params.get("logprobs", 0)
        sampled = self._sample(
            _Wanted(
                request["model"],
                request["token_ids"],
                params["max_tokens"],
                params["seed"],
                num_logprobs,
                **_truncation(params),
            )
        )
        content = [
            {
                "token_id": column[0][0],
                "logprob": column[0][1],
                "top_logprobs": [
                    {"token_id": token, "logprob": max(logprob, ABSENT_LOGPROB)}
                    # As vLLM: the sampled token counts, and only then the list is cut to K.
                    for token, logprob in list(dict(column).items())[: max(num_logprobs, 1)]
                ],
            }
            for column in sampled.columns
        ]
        span = {"version": self.state.label, "start": 0, "end": len(sampled.output_ids)}
        choice = {
            "index": 0,
            "token_ids": sampled.output_ids,
            "finish_reason": sampled.finish_reason,
            "logprobs": {"content": content},
            "sampling_mask": sampled.mask,
            "weight_versions": [span] if sampled.output_ids else None,
        }
        return JSONResponse({"request_id": "fake", "choices": [choice]})

    def _completions(self, body: bytes) -> Response:
        request = msgspec.json.decode(body)
        num_logprobs = request.get("logprobs")
        sampled = self._sample(
            _Wanted(
                request["model"],
                request["prompt"],
                request["max_tokens"],
                request.get("seed", 0),
                num_logprobs or 0,
                **_truncation(request),
            )
        )
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "finish_reason": sampled.finish_reason,
            "token_ids": sampled.output_ids if request.get("return_token_ids") else None,
            "logprobs": None,
            "prompt_logprobs": None,
        }
        if num_logprobs is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in sampled.output_ids],
                "token_logprobs": [column[0][1] for column in sampled.columns],
                "top_logprobs": [
                    {f"token_id:{token}": max(logprob, ABSENT_LOGPROB) for token, logprob in column}
                    for column in sampled.columns
                ],
            }
        if request.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(request["model"], request["prompt"])
        return JSONResponse({"id": "fake", "object": "text_completion", "choices": [choice]})

    def _prompt_logprobs(self, model: str, token_ids: list[int]) -> list[Any]:
        version = self.state.versions.get(model, 0)
        logprobs = expected_logprobs(token_ids, version, self.state.vocab_size).tolist()
        scored = zip(token_ids[1:], logprobs[1:], strict=True)
        return [None, *({str(token): {"logprob": logprob}} for token, logprob in scored)]

    def _sample(self, wanted: _Wanted) -> _Sampled:
        """The turn that `wanted` gets: the same one for the same request, on every endpoint."""
        state = self.state
        self._check(wanted)
        state.requests.append((wanted.model, wanted.seed))
        version = state.versions.get(wanted.model, 0)
        room = min(wanted.max_tokens, state.max_model_len - len(wanted.prompt_ids))
        if state.script is not None:
            output_ids = state.script(wanted.prompt_ids, wanted.seed)[:room]
        else:
            output_ids = self._draw(wanted, version, room)
        columns: list[list[tuple[int, float]]] = []
        for before, token in zip([wanted.prompt_ids[-1], *output_ids], output_ids, strict=False):
            logprobs_V = self._logprobs(before, version, wanted)
            top = np.argsort(-logprobs_V)[: wanted.num_logprobs].tolist()
            columns.append([(t, float(logprobs_V[t])) for t in (token, *top)])
        if state.wrong_lengths_next:
            state.wrong_lengths_next -= 1
            columns.pop()
        state.generated_tokens += len(output_ids)
        stopped = bool(output_ids) and output_ids[-1] == state.eos
        mask = None
        if state.lists_masks:
            contexts = zip([wanted.prompt_ids[-1], *output_ids], output_ids, strict=False)
            logprobs = (self._logprobs(before, version, wanted) for before, _ in contexts)
            mask = [np.flatnonzero(np.isfinite(logprobs_V)).tolist() for logprobs_V in logprobs]
        return _Sampled(output_ids, mask, columns, "stop" if stopped else "length")

    def _logprobs(self, before: int, version: int, wanted: _Wanted) -> np.ndarray:
        logprobs_V = logprobs_after(before, version, self.state.vocab_size)
        if not wanted.top_k and wanted.top_p == 1 and not wanted.min_p:
            return logprobs_V
        return truncated(logprobs_V, wanted.top_k, wanted.top_p, wanted.min_p)

    def _draw(self, wanted: _Wanted, version: int, room: int) -> list[int]:
        state = self.state
        draw = random.Random(f"{wanted.seed}:{version}:{wanted.prompt_ids}")
        output_ids: list[int] = []
        token = wanted.prompt_ids[-1]
        for _ in range(room):
            weights = np.exp(self._logprobs(token, version, wanted))
            token = draw.choices(range(state.vocab_size), weights.tolist())[0]
            output_ids.append(token)
            if token == state.eos:
                break
        return output_ids

    def _check(self, wanted: _Wanted) -> None:
        state = self.state
        if wanted.model not in {state.model, *state.adapters}:
            message = f"The model `{wanted.model}` does not exist. Valid aliases: {state.model}."
            raise _RefusalError(404, message, "NotFoundError")
        if len(wanted.prompt_ids) >= state.max_model_len:
            raise _RefusalError(
                400,
                f"The decoder prompt (length {len(wanted.prompt_ids)}) is longer than the "
                f"maximum model length of {state.max_model_len}.",
            )
        if wanted.num_logprobs > state.max_logprobs:
            raise _RefusalError(
                400,
                f"Requested sample logprobs of {wanted.num_logprobs}, which is greater than max "
                f"allowed: {state.max_logprobs}",
            )
        if state.lists_masks and not wanted.top_k:
            raise _RefusalError(400, "sampling distribution replay requires top_k > 0")
        if wanted.max_tokens < 1:
            raise _RefusalError(400, f"max_tokens must be at least 1, got {wanted.max_tokens}.")
        if any(not 0 <= token < state.vocab_size for token in wanted.prompt_ids):
            raise _RefusalError(400, f"Token id {max(wanted.prompt_ids)} is out of vocabulary")

    # Control

    def _control(self, path: str, body: bytes) -> Response:
        state = self.state
        state.calls.append(path)
        if state.fail_control and path != "/fake/script":
            raise _RefusalError(state.fail_control.pop(0), "scripted failure", "Scripted")
        if state.dead and path not in {"/v1/models", "/server_info", "/fake/script"}:
            raise _RefusalError(500, DEAD, "InternalServerError")
        answer = self._controls[path](msgspec.json.decode(body) if body else {})
        return PlainTextResponse(answer) if isinstance(answer, str) else JSONResponse(answer)

    def _models(self, _: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        base = {"id": state.model, "root": state.model, "max_model_len": state.max_model_len}
        adapters = [
            {"id": name, "root": path, "parent": state.model, "max_model_len": None}
            for name, path in state.adapters.items()
        ]
        return {"object": "list", "data": [base | {"parent": None}, *adapters]}

    def _server_info(self, _: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        lora = {"max_loras": state.max_loras, "max_lora_rank": state.max_lora_rank}
        transfer = state.weight_transfer_backend
        return {
            "vllm_config": {
                "model_config": {
                    "model": state.model,
                    "dtype": f"torch.{state.dtype}",
                    "max_model_len": state.max_model_len,
                    "max_logprobs": state.max_logprobs,
                    "logprobs_mode": state.logprobs_mode,
                },
                "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": 1},
                "cache_config": {"block_size": state.block_size},
                "lora_config": lora if state.enable_lora else None,
                "weight_transfer_config": {"backend": transfer} if transfer else None,
            }
        }

    def _load_adapter(self, body: dict[str, Any]) -> str:
        state = self.state
        if not state.enable_lora:
            raise _NoRouteError
        name, path = body["lora_name"], body["lora_path"]
        if name in state.adapters:
            raise _RefusalError(
                400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput"
            )
        if state.hide_adapters or not (Path(path) / "adapter_config.json").is_file():
            state.hide_adapters = max(0, state.hide_adapters - 1)
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise _RefusalError(404, message, "NotFoundError")
        held = max(state.versions.values(), default=0)
        state.adapters[name] = path
        state.versions[name] = held if state.ignore_loads else version_of(path)
        return f"Success: LoRA adapter '{name}' added successfully."

    def _unload_adapter(self, body: dict[str, Any]) -> str:
        name = body["lora_name"]
        if self.state.adapters.pop(name, None) is None:
            raise _RefusalError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _pause(self, _: dict[str, Any]) -> dict[str, Any]:
        self.state.paused = True
        self._running.clear()
        return {"status": "paused"}

    def _resume(self, _: dict[str, Any]) -> dict[str, Any]:
        self.state.paused = False
        self._running.set()
        return {"status": "resumed"}

    def _start_update(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.state.weight_transfer_backend is None:
            message = "Weight transfer not configured. Please set weight_transfer_config"
            raise _RefusalError(500, message, "InternalServerError")
        self.state.updating = True
        return {"message": "Weight update started"}

    def _update_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        state = self.state
        if not state.updating:
            raise _RefusalError(500, "start_weight_update was not called", "InternalServerError")
        state.updates.append(body["update_info"])
        if not state.ignore_loads:
            state.versions[state.model] = version_of(body["update_info"]["path"])
        return {"message": "Weights updated"}

    def _finish_update(self, body: dict[str, Any]) -> dict[str, Any]:
        self.state.updating = False
        self.state.label = body.get("weight_version") or self.state.label
        return {"message": "Weight update finished"}

    def _script(self, body: dict[str, Any]) -> dict[str, Any]:
        for name, value in body.items():
            assert hasattr(self.state, name), name
            setattr(self.state, name, value)
        return {}


def metrics_text(state: FakeState) -> str:
    """`/metrics` as vLLM writes it, of the series that are read."""
    used = min(1.0, state.running * state.max_model_len / state.kv_tokens)
    used = used if state.kv_usage is None else state.kv_usage
    labels = f'engine="0",model_name="{state.model}"'
    blocks, fit = state.kv_tokens // state.block_size, state.kv_tokens / state.max_model_len
    return f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {state.running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{labels}}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{{labels}}} {used}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{{labels}}} 0.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{{labels}}} 0.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{{labels}}} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{{labels}}} {state.generated_tokens}.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{state.block_size}",engine="0",num_gpu_blocks="{blocks}",\
kv_cache_max_concurrency="{fit}",kv_cache_size_tokens="{state.kv_tokens}"}} 1.0
"""


def build_app(state: FakeState) -> Starlette:
    """The ASGI application that serves `state`; build it on the event loop that runs it."""
    handle: Callable[[Request], Awaitable[Response]] = _Fake(state).handle
    return Starlette(routes=[Route("/{path:path}", handle, methods=["GET", "POST"])])


class FakeServer:
    """The fake in a thread of this process, on a free port of the loopback by default."""

    def __init__(self, state: FakeState | None = None, *, port: int = 0) -> None:
        self.state = state or FakeState()
        # Naming the protocol is what makes asyncio set TCP_NODELAY: without it, 40 ms an answer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen(1024)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            lambda: build_app(self.state), factory=True, log_level="critical", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        """Serve until stopped."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the fake server did not start"
            self._thread.join(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)


def main() -> None:
    """Serve as a process; flags it does not know, such as vLLM's other ones, are ignored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--served-model-name", default=None)
    args, _ = parser.parse_known_args()
    FakeServer(FakeState(model=args.served_model_name or args.model), port=args.port).serve()


if __name__ == "__main__":
    main()
