"""The middleware without vLLM: what it passes on and what it refuses before any engine."""

import json
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.packed import PackedEndpoint
from asyncgrpo.server.turns_packed import packed_request


async def stock_app(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"stock {scope['path']}".encode()})


class Application:
    """What vLLM's API server is to a middleware: it puts itself into the scope."""

    def __init__(self, *, api_keys: list[str] | None = None) -> None:
        models = SimpleNamespace(
            is_base_model=lambda name: name == "base", lora_requests={}, lora_resolvers=[]
        )
        args = SimpleNamespace(api_key=api_keys)
        self.state = SimpleNamespace(args=args, openai_serving_models=models)
        self.middleware = PackedEndpoint(stock_app)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.middleware({**scope, "app": self}, receive, send)


def client(app: Application) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = json.loads(response.content)["error"]
    assert error["code"] == response.status_code
    return error


async def test_every_other_path_is_passed_on():
    async with client(Application(api_keys=["k"])) as http:
        assert (await http.get("/v1/models")).text == "stock /v1/models"
        assert (await http.post("/asyncgrpo/other")).text == "stock /asyncgrpo/other"


async def test_an_unknown_model_is_404_never_silently_the_base(make_request):
    async with client(Application()) as http:
        body = packed_request(make_request(policy="policy-v000003"))
        response = await http.post(Endpoint.PACKED.value, content=body)
    assert response.status_code == 404
    assert error_of(response)["message"] == "The model `policy-v000003` does not exist."


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"model": "base"}', id="JSON"),
        pytest.param(msgspec.msgpack.encode({"model": "base"}), id="fields missing"),
    ],
)
async def test_a_body_that_is_no_request_is_400(body):
    async with client(Application()) as http:
        response = await http.post(Endpoint.PACKED.value, content=body)
    assert response.status_code == 400
    assert "not a packed request" in error_of(response)["message"]


async def test_a_prompt_must_hold_a_token(make_request):
    async with client(Application()) as http:
        body = packed_request(make_request(policy="base", length=0))
        response = await http.post(Endpoint.PACKED.value, content=body)
    assert (response.status_code, error_of(response)["type"]) == (400, "BadRequestError")


async def test_other_methods_are_405():
    async with client(Application()) as http:
        assert (await http.get(Endpoint.PACKED.value)).status_code == 405


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "k1", "Basic k1"])
async def test_the_key_is_asked_for_though_vllms_own_check_is_further_in(header, make_request):
    headers = {} if header is None else {"Authorization": header}
    async with client(Application(api_keys=["k1", "k2"])) as http:
        body = packed_request(make_request())
        response = await http.post(Endpoint.PACKED.value, content=body, headers=headers)
    assert response.status_code == 401
    assert error_of(response)["message"] == "missing or wrong API key"


@pytest.mark.parametrize("key", ["k1", "k2"])
async def test_each_of_several_keys_opens(key, make_request):
    async with client(Application(api_keys=["k1", "k2"])) as http:
        headers = {"Authorization": f"Bearer {key}"}
        body = packed_request(make_request(policy="nobody"))
        response = await http.post(Endpoint.PACKED.value, content=body, headers=headers)
    assert response.status_code == 404  # let in, and told that there is no such model


async def test_the_key_of_the_environment_counts_too(monkeypatch, make_request):
    monkeypatch.setenv("VLLM_API_KEY", "k3")
    async with client(Application()) as http:
        response = await http.post(Endpoint.PACKED.value, content=packed_request(make_request()))
    assert response.status_code == 401
