"""The packed endpoint and the lease: an ASGI middleware that vLLM's own API server loads.

    --middleware asyncgrpo.server.packed.PackedEndpoint

    POST /asyncgrpo/generate (msgpack) -> engine_client.generate -> arrays in msgpack
    POST /asyncgrpo/lease (JSON)       -> Lease -> who trains with this server (JSON)

Stock endpoints build Python objects per logprob and then JSON; this one asks the engine for flat
logprobs and no text, and answers bytes, so that the top K logprobs cost next to nothing. Errors
have the statuses and bodies of the stock endpoints. A middleware sits outside vLLM's own
authentication, so the key is checked here too.

vLLM is imported inside the functions only: this module must be importable without it.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.key_guard import is_authorized
from asyncgrpo.server.lease import PATH as LEASE_PATH
from asyncgrpo.server.lease import Claim, Lease
from asyncgrpo.server.turns import WireSpan
from asyncgrpo.server.turns_packed import PackedRequest, pack_answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
    from vllm.inputs.engine import TokensInput
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams

_REQUEST = msgspec.msgpack.Decoder(PackedRequest)


class _RefusedError(Exception):
    """An error answer: its HTTP status, type and message."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


class _ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class PackedEndpoint:
    """Serves `Endpoint.PACKED` and the lease, and passes everything else on."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app
        self._num_served = 0
        self._lease = Lease()
        self._routes = {Endpoint.PACKED.value: self._generate, LEASE_PATH: self._claim}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        state = scope["app"].state
        try:
            _authorize(scope)
            body = await _read_body(receive)
            answer = await _until_gone(route(state, body), receive)
        except _ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001  (a server answers; it does not raise)
            status, body = _error_answer(error, state)
            await _send(send, status, b"application/json", body)
        else:
            kind = b"application/json" if route == self._claim else b"application/msgpack"
            await _send(send, 200, kind, answer)

    async def _claim(self, _state: Any, body: bytes) -> bytes:
        try:
            claim = msgspec.json.decode(body, type=Claim)
        except msgspec.MsgspecError as error:
            raise _RefusedError(400, "BadRequestError", f"not a claim: {error}") from error
        return msgspec.json.encode(self._lease.answer(claim, time.monotonic()))

    async def _generate(self, state: Any, body: bytes) -> bytes:
        request = _decode(body)
        lora = await _resolve_adapter(state, request.model)
        self._num_served += 1
        outputs = state.engine_client.generate(
            _engine_input(request),
            _sampling_params(request),
            f"packed-{self._num_served}",
            lora_request=lora,
        )
        final = None
        async for output in outputs:
            final = output
        assert final is not None
        return _answer(final.outputs[0], request.num_logprobs)


def _decode(body: bytes) -> PackedRequest:
    try:
        request = _REQUEST.decode(body)
    except msgspec.MsgspecError as error:
        raise _RefusedError(400, "BadRequestError", f"not a packed request: {error}") from error
    if not request.prompt_ids or len(request.prompt_ids) % 4:
        raise _RefusedError(400, "BadRequestError", "prompt_ids must hold at least one int32")
    return request


def _engine_input(request: PackedRequest) -> "TokensInput":
    from vllm.inputs.engine import tokens_input

    return tokens_input(np.frombuffer(request.prompt_ids, "<i4").tolist())


def _sampling_params(request: PackedRequest) -> "SamplingParams":
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        max_tokens=request.max_tokens,
        seed=request.seed,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        stop=list(request.stop) or None,
        logprobs=request.num_logprobs,
        flat_logprobs=True,
        detokenize=bool(request.stop),  # stop strings are found in the text
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


async def _resolve_adapter(state: Any, model: str) -> "LoRARequest | None":
    """The adapter that `model` names; None for the base model itself."""
    models = state.openai_serving_models
    if models.is_base_model(model):
        return None
    lora = models.lora_requests.get(model)
    if lora is None and models.lora_resolvers:
        found = await models.resolve_lora(model)
        lora = None if hasattr(found, "error") else found
    if lora is None:
        raise _RefusedError(404, "NotFoundError", f"The model `{model}` does not exist.")
    return lora


def _answer(output: "CompletionOutput", num_logprobs: int) -> bytes:
    reason = output.finish_reason or "stop"
    if reason == "error":
        raise _RefusedError(500, "InternalServerError", "the engine failed this request")
    flat: Any = output.logprobs
    num_values = len(output.token_ids) * (num_logprobs + 1)
    if len(flat.logprobs) != num_values:
        message = f"vLLM gave {len(flat.logprobs)} logprobs; {num_values} were asked for"
        raise _RefusedError(500, "InternalServerError", message)
    mask: Any = getattr(output, "sampling_mask", None)  # with --return-sampling-mask
    spans: Any = getattr(output, "weight_versions", None) or ()  # vLLM 0.32 and later
    return pack_answer(
        output.token_ids,
        flat.token_ids,
        flat.logprobs,
        reason,
        [WireSpan(span.version, span.start, span.end) for span in spans],
        mask=None if mask is None else mask.token_ids,
    )


def _authorize(scope: "Scope") -> None:
    if not is_authorized(scope):
        raise _RefusedError(401, "Unauthorized", "missing or wrong API key")
    if scope["method"] != "POST":
        raise _RefusedError(405, "MethodNotAllowed", f"{scope['path']} takes POST")


async def _read_body(receive: "Receive") -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _until_gone(generation: Any, receive: "Receive") -> bytes:
    """The generation's answer; it is cancelled, and so aborted in the engine, on a disconnect."""
    task = asyncio.ensure_future(generation)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _ClientGoneError
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error_answer(error: Exception, state: Any) -> tuple[int, bytes]:
    if isinstance(error, _RefusedError):
        status, kind, message = error.status, error.kind, error.message
    else:
        from vllm.entrypoints.launchers.launcher import terminate_if_errored
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

        terminate_if_errored(server=state.server, engine=state.engine_client)
        info = create_error_response(error).error
        status, kind, message = info.code, info.type, info.message
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return status, msgspec.json.encode(body)


async def _send(send: "Send", status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
