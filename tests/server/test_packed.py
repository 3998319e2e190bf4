"""The middleware without vLLM: what it passes on and what it refuses before any engine."""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from asyncgrpo.records import VersionSpan
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.candidates import CandidateSource
from asyncgrpo.server.packed import PackedEndpoint
from asyncgrpo.server.turns_packed import packed_request, packed_turn


async def stock_app(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"stock {scope['path']}".encode()})


class Application:
    """vLLM's API server as a middleware sees it: it puts itself into the scope."""

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


class Engine:
    """vLLM's engine client as the middleware sees it: it yields only the final output."""

    def __init__(self, output: SimpleNamespace, *, delay_s: float = 0.0) -> None:
        self.output, self.delay_s, self.aborted = output, delay_s, False
        self.asked: list[SimpleNamespace] = []

    async def generate(self, _prompt: Any, params: SimpleNamespace, *_: Any, **_kwargs: Any):
        self.asked.append(params)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.aborted = True
            raise
        yield SimpleNamespace(outputs=[self.output])


@pytest.fixture(name="vllm_modules")
def _vllm_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the middleware imports, without vLLM, which takes many seconds."""
    kinds = SimpleNamespace(FINAL_ONLY="final only")
    modules = {
        "vllm": SimpleNamespace(),
        "vllm.inputs": SimpleNamespace(),
        "vllm.inputs.engine": SimpleNamespace(tokens_input=lambda ids: {"ids": ids}),
        "vllm.sampling_params": SimpleNamespace(
            SamplingParams=SimpleNamespace, RequestOutputKind=kinds
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def output(**changes: Any) -> SimpleNamespace:
    flat = SimpleNamespace(token_ids=[7, 7, 3, 9, 5, 9], logprobs=[-0.5, -0.5, -1, -2, -0.1, -2])
    given = {"token_ids": [7, 9], "logprobs": flat, "finish_reason": "length"} | changes
    return SimpleNamespace(**given)


@pytest.mark.usefixtures("vllm_modules")
async def test_an_answer_carries_the_mask_where_the_server_lists_one(make_request):
    app = Application()
    mask = SimpleNamespace(token_ids=[[3, 7], [5, 9, 11]])
    span = SimpleNamespace(version="7", start=0, end=2)
    app.state.engine_client = Engine(output(sampling_mask=mask, weight_versions=[span]))
    wanted = make_request(policy="base", num_logprobs=2)
    async with client(app) as http:
        response = await http.post(Endpoint.PACKED.value, content=packed_request(wanted))
    turn = packed_turn(response.content, wanted.sampling, CandidateSource.MASK)
    assert turn.output_ids.tolist() == [7, 9]
    assert turn.candidate_ids.tolist() == [3, 7, 5, 9, 11]
    assert turn.candidate_counts.tolist() == [2, 3]
    assert turn.version_spans == (VersionSpan(7, 0, 2),)
    (asked,) = app.state.engine_client.asked
    assert (asked.flat_logprobs, asked.detokenize, asked.output_kind) == (True, False, "final only")


@pytest.mark.usefixtures("vllm_modules")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finish_reason": "error"}, "the engine failed this request"),
        ({"token_ids": [7, 9, 1]}, "vLLM gave 6 logprobs; 9 were asked for"),
    ],
)
async def test_an_output_that_is_none_is_500(make_request, changes, message):
    app = Application()
    app.state.engine_client = Engine(output(**changes))
    async with client(app) as http:
        wanted = make_request(policy="base", num_logprobs=2)
        response = await http.post(Endpoint.PACKED.value, content=packed_request(wanted))
    assert response.status_code == 500
    assert message in error_of(response)["message"]


@pytest.mark.usefixtures("vllm_modules")
async def test_a_client_that_goes_away_ends_the_request(make_request):
    app = Application()
    app.state.engine_client = engine = Engine(output(), delay_s=30)
    body = packed_request(make_request(policy="base"))
    coming = [
        {"type": "http.request", "body": body[:9], "more_body": True},
        {"type": "http.request", "body": body[9:]},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": Endpoint.PACKED.value, "headers": []}
    await app(scope, receive, send)
    await asyncio.sleep(0)
    assert engine.aborted
    assert not sent


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
