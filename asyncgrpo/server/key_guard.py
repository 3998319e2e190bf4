"""The API key on every route: an ASGI middleware for vLLM's own API server.

    --middleware asyncgrpo.server.key_guard.KeyGuard

vLLM asks for its key on /v1 and /inference only. The control routes of a training run (pause,
weight transfer, collective_rpc, ...) are as open as the port is, so a server that others can reach
gets this guard, and so does every route that a middleware of ours adds.
"""

import hmac
import os
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})  # they tell and change nothing


class KeyGuard:
    """Passes on requests that carry the server's key, and those of open paths."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or is_authorized(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)


def is_authorized(scope: "Scope") -> bool:
    """True where the request carries one of the server's keys, or it has none."""
    keys = scope["app"].state.args.api_key or [os.environ.get("VLLM_API_KEY")]
    wanted = [f"Bearer {key}".encode() for key in keys if key]
    sent = dict(scope["headers"]).get(b"authorization", b"")
    # Every key is compared, in constant time each: how long it takes tells nothing.
    return not wanted or any([hmac.compare_digest(sent, key) for key in wanted])  # noqa: C419


async def _refuse(send: "Send") -> None:
    info = {"message": "missing or wrong API key", "type": "Unauthorized", "code": 401}
    body = msgspec.json.encode({"error": info})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
