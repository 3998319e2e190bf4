"""Routes that the key opens, and routes that are open without it."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from asyncgrpo.server.key_guard import KeyGuard


def http(api_keys: list[str] | None) -> httpx.AsyncClient:
    async def inner(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})

    guard = KeyGuard(inner)
    app = SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(api_key=api_keys)))

    async def server(scope: Any, receive: Any, send: Any) -> None:
        await guard({**scope, "app": app}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://server")


@pytest.mark.parametrize(
    "path",
    ["/pause", "/update_weights", "/collective_rpc", "/server_info", "/v1/models", "/healthy"],
)
async def test_control_routes_need_the_key(path):
    async with http(["k"]) as client:
        assert (await client.post(path)).status_code == 401
        assert (await client.post(path, headers={"Authorization": "Bearer x"})).status_code == 401
        assert (await client.post(path, headers={"Authorization": "Bearer k"})).text == "in"


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_are_open(path):
    async with http(["k"]) as client:
        assert (await client.get(path)).text == "in"


async def test_a_server_without_a_key_is_open(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    async with http(None) as client:
        assert (await client.post("/pause")).text == "in"


async def test_the_key_of_the_environment_counts(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "k")
    async with http(None) as client:
        assert (await client.post("/pause")).status_code == 401
        assert (await client.post("/pause", headers={"Authorization": "Bearer k"})).text == "in"
