"""HTTP calls that the fake and the real server both get, and the comparison of their answers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import numpy as np

from asyncgrpo.records import SamplingParams, TurnRequest
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.turns_packed import PackedAnswer, packed_request

MODEL = str(Path(__file__).parents[1] / "assets" / "sums-model")
CONTEXT = 256
KEY = "contract-key"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}


class Call(NamedTuple):
    method: str
    path: str
    body: dict[str, Any] | bytes | None = None


SAMPLING = {"max_tokens": 4, "temperature": 1.0, "seed": 3, "logprobs": 3}
SHORT, LONG = [10, 11, 12], [10] * (CONTEXT + 5)


def turn_calls(**changes: Any) -> dict[str, Call]:
    """One turn, asked for in three ways."""
    wanted = {"model": MODEL, "ids": SHORT, **SAMPLING, **changes}
    model, ids = wanted.pop("model"), wanted.pop("ids")
    request = TurnRequest(
        model,
        np.array(ids, np.int32),
        wanted["max_tokens"],
        wanted["seed"],
        SamplingParams(num_logprobs=wanted["logprobs"]),
    )
    completion = {"model": model, "prompt": ids, "return_token_ids": True, **wanted}
    completion["return_tokens_as_token_ids"] = True
    return {
        "packed": Call("POST", Endpoint.PACKED.value, packed_request(request)),
        "generate": Call(
            "POST",
            Endpoint.GENERATE.value,
            {"model": model, "token_ids": ids, "sampling_params": wanted},
        ),
        "completions": Call("POST", Endpoint.COMPLETIONS.value, completion),
    }


def named(what: str, calls: dict[str, Call]) -> dict[str, Call]:
    return {f"{what}, {how}": call for how, call in calls.items()}


ADAPTER = "/v1/load_lora_adapter"
CASES: dict[str, Call] = {
    "health": Call("GET", "/health"),
    "models": Call("GET", "/v1/models"),
    "server info": Call("GET", "/server_info?config_format=json"),
    **named("a turn", turn_calls()),
    **named("no top logprobs", turn_calls(logprobs=0)),
    **named("unknown model", turn_calls(model="policy-v000099")),
    **named("prompt too long", turn_calls(ids=LONG)),
    **named("no tokens", turn_calls(max_tokens=0)),
    **named("too many logprobs", turn_calls(logprobs=30)),
    **named("not a token", turn_calls(ids=[10, 99_999])),
    "prompt logprobs": Call(
        "POST",
        "/v1/completions",
        {"model": MODEL, "prompt": SHORT, "max_tokens": 1, "prompt_logprobs": 0},
    ),
    "no adapter there": Call("POST", ADAPTER, {"lora_name": "a", "lora_path": "/nowhere"}),
    "load": Call("POST", ADAPTER, {"lora_name": "policy-v000001", "lora_path": "ADAPTER"}),
    "load again": Call("POST", ADAPTER, {"lora_name": "policy-v000001", "lora_path": "ADAPTER"}),
    "models with adapter": Call("GET", "/v1/models"),
    **named("a turn of the adapter", turn_calls(model="policy-v000001")),
    "unload": Call("POST", "/v1/unload_lora_adapter", {"lora_name": "policy-v000001"}),
    **named("a turn of none", turn_calls(model="policy-v000001")),
    "unload unknown": Call("POST", "/v1/unload_lora_adapter", {"lora_name": "policy-v000001"}),
    "pause": Call("POST", "/pause?mode=keep"),
    "is paused": Call("GET", "/is_paused"),
    "resume": Call("POST", "/resume"),
    "resume again": Call("POST", "/resume"),
    "is not paused": Call("GET", "/is_paused"),
    "reset prefix cache": Call("POST", "/reset_prefix_cache"),
    "weight info": Call("GET", "/weight_info"),
    "no such route": Call("GET", "/nowhere"),
}


def send(
    url: str, call: Call, adapter: str, headers: Mapping[str, str] = AUTHORIZED
) -> httpx.Response:
    content: bytes | str | None = None
    if isinstance(call.body, bytes):
        content = call.body
    elif call.body is not None:
        content = json.dumps(call.body).replace("ADAPTER", adapter)
    return httpx.request(
        call.method,
        url + call.path,
        content=content,
        headers={"content-type": "application/json", **headers},
        timeout=120,
    )


def decoded(response: httpx.Response) -> Any:
    if response.headers.get("content-type", "").startswith("application/msgpack"):
        return msgspec.to_builtins(msgspec.msgpack.decode(response.content, type=PackedAnswer))
    try:
        return response.json()
    except ValueError:
        return response.text


def by_token(answer: dict[str, Any]) -> bool:
    """True where the keys are tokens, which differ between the two."""
    return bool(answer) and all(re.fullmatch(r"(token_id:)?\d+", key) for key in answer)


def misfit(fake: Any, real: Any, where: str = "answer") -> str | None:
    """The first place where the fake has more than the real server, or None."""
    if isinstance(fake, dict) and isinstance(real, dict):
        if by_token(fake) and by_token(real):
            one, other = (list(answer.values())[-1] for answer in (fake, real))
            return misfit(one, other, f"{where}[token]")
        for key, value in fake.items():
            if key not in real:
                return f"{where} has no {key!r}; it has {sorted(real)}"
            if found := misfit(value, real[key], f"{where}[{key!r}]"):
                return found
        return None
    if isinstance(fake, list) and isinstance(real, list):
        return misfit(fake[-1], real[-1], f"{where}[-1]") if fake and real else None
    number = (int, float)
    alike = type(fake) is type(real) or (isinstance(fake, number) and isinstance(real, number))
    return None if alike else f"{where} is {real!r}, and the fake's is {fake!r}"
