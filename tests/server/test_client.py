"""The client against the fake over HTTP: turns, messages, adapters, weights, readiness."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import numpy as np
import pytest

import asyncgrpo
from asyncgrpo.errors import ServerError
from asyncgrpo.records import FinishReason, VersionSpan
from asyncgrpo.server.api import Endpoint
from asyncgrpo.server.client import ServerClient, configured_client
from asyncgrpo.server.failures import (
    EngineDeadError,
    RouteMissingError,
    StatusError,
    UnknownModelError,
    UnreachableError,
)
from asyncgrpo.server.retries import Retries
from tests.fake_vllm import FakeServer, FakeState, expected_logprobs
from tests.server.conftest import AT_ONCE

EVERY_ENDPOINT = pytest.mark.parametrize("endpoint", list(Endpoint))


def published(tmp_path: Path, version: int) -> str:
    path = tmp_path / f"policy-v{version:06d}"
    path.mkdir()
    (path / "adapter_config.json").write_text("{}")
    return str(path)


@EVERY_ENDPOINT
async def test_a_turn_has_the_tokens_their_logprobs_and_the_top_k(client, make_request, endpoint):
    client.endpoint = endpoint
    request = make_request(num_logprobs=3, tokens=6)
    turn = await client.generate(request)
    assert turn.output_ids.size <= 6
    sequence = [int(request.prompt_ids[-1]), *turn.output_ids.tolist()]
    np.testing.assert_allclose(turn.logprobs, expected_logprobs(sequence, 0)[1:], rtol=1e-6)
    assert turn.top_ids.shape == turn.top_logprobs.shape == (turn.output_ids.size, 3)
    assert (np.diff(turn.top_logprobs, axis=1) <= 0).all()


async def test_seeds_decide_the_turn(client, make_request):
    same = [await client.generate(make_request(seed=5)) for _ in range(2)]
    np.testing.assert_array_equal(same[0].output_ids, same[1].output_ids)
    others = [(await client.generate(make_request(seed=s))).output_ids.tolist() for s in range(8)]
    assert len({tuple(ids) for ids in others}) > 1


async def test_a_script_decides_the_tokens_and_eos_ends_a_turn(fake, client, make_request):
    fake.state.script = lambda prompt, seed: [9, seed, fake.state.eos]
    turn = await client.generate(make_request(seed=11))
    assert turn.output_ids.tolist() == [9, 11, 2]
    assert turn.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"fail_next": [500, 503, 429]}, id="5xx and 429"),
        pytest.param({"disconnect_next": 3}, id="disconnects"),
        pytest.param({"half_next": 3}, id="half bodies"),
    ],
)
async def test_what_may_pass_is_tried_again_and_counted(fake, make_request, trouble):
    seen: list[ServerError] = []
    for name, value in trouble.items():
        setattr(fake.state, name, value)
    async with ServerClient(fake.url, retries=AT_ONCE, on_retry=seen.append) as client:
        turn = await client.generate(make_request())
    assert turn.output_ids.size
    assert len(seen) == 3
    assert all(Endpoint.PACKED.value in str(error) for error in seen)


async def test_a_server_that_comes_back_is_found_again(make_request, silent_port):
    seen: list[ServerError] = []
    retries = Retries(attempts=50, first_s=0.1, longest_s=0.5)
    url = f"http://127.0.0.1:{silent_port}"
    async with ServerClient(url, retries=retries, on_retry=seen.append) as client:
        waiting = asyncio.ensure_future(client.generate(make_request()))
        while not seen:  # noqa: ASYNC110  (the client tells through a callback)
            await asyncio.sleep(0.01)
        with FakeServer(port=silent_port):
            assert (await waiting).output_ids.size
    assert all(isinstance(error, UnreachableError) for error in seen)


async def test_wrong_lengths_are_refused(fake, client, make_request):
    fake.state.wrong_lengths_next = 1
    with pytest.raises(ServerError, match="expected"):
        await client.generate(make_request())


async def test_a_dead_engine_ends_the_tries(fake, client, make_request):
    fake.state.dead = True
    with pytest.raises(EngineDeadError, match=r"dead.*Restart the server"):
        await client.generate(make_request())
    assert not await client.health()
    with pytest.raises(EngineDeadError):
        await client.pause()


async def test_an_unknown_policy_is_told_from_a_missing_route(fake, client, make_request):
    with pytest.raises(UnknownModelError, match="`policy-v000009` does not exist"):
        await client.generate(make_request(policy="policy-v000009"))
    fake.state.packed = False
    with pytest.raises(RouteMissingError, match=r"start it with --middleware"):
        await client.generate(make_request())


async def test_a_prompt_longer_than_the_context_names_the_flag(client, make_request):
    with pytest.raises(StatusError, match="--max-model-len"):
        await client.generate(make_request(length=600))


async def test_no_server_is_told_apart_and_tried_again(make_request, silent_port):
    url = f"http://127.0.0.1:{silent_port}"
    seen: list[ServerError] = []
    async with ServerClient(url, retries=AT_ONCE, on_retry=seen.append) as client:
        with pytest.raises(UnreachableError, match="is the server running"):
            await client.generate(make_request())
        assert len(seen) == AT_ONCE.attempts - 1
        assert not await client.health()


async def test_a_slow_answer_times_out(fake, make_request):
    fake.state.latency_s = 5.0
    async with ServerClient(fake.url, timeout_s=0.2, retries=Retries(attempts=1)) as client:
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.2 s"):
            await client.generate(make_request())


async def test_a_server_that_never_answers_costs_one_timeout_and_not_one_per_try(
    fake, make_request
):
    fake.state.latency_s = 30
    tried_again: list[Exception] = []
    async with ServerClient(fake.url, timeout_s=0.5, on_retry=tried_again.append) as client:
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.5 s"):
            await client.generate(make_request())
    assert len(tried_again) < 3  # nine, were the timeout per try


async def test_hundreds_are_in_flight_at_once(fake, client, make_request):
    fake.state.hold_until = 300
    async with asyncio.timeout(60):
        await asyncio.gather(*(client.generate(make_request(seed=i)) for i in range(300)))
    assert fake.state.most_running == 300


async def test_an_adapter_is_loaded_once_under_its_name(fake, client, tmp_path, make_request):
    path = published(tmp_path, 3)
    await client.load_adapter("policy-v000003", path)
    await client.load_adapter("policy-v000003", path)  # again is success
    assert [model.name for model in await client.models()] == ["fake", "policy-v000003"]
    await client.generate(make_request(policy="policy-v000003"))
    with pytest.raises(ServerError, match="one name must mean one set of weights"):
        await client.load_adapter("policy-v000003", published(tmp_path, 4))
    await client.unload_adapter("policy-v000003")
    with pytest.raises(StatusError, match="cannot be found") as refused:
        await client.unload_adapter("policy-v000003")
    assert refused.value.status == 404


async def test_an_adapter_not_seen_yet_is_asked_for_again(fake, client, tmp_path):
    fake.state.hide_adapters = 2
    await client.load_adapter("policy-v000003", published(tmp_path, 3))
    assert fake.state.calls.count("/v1/load_lora_adapter") == 3


async def test_an_adapter_never_seen_is_an_error(client, tmp_path, monkeypatch):
    monkeypatch.setattr("asyncgrpo.server.client_adapters.ADAPTER_SEEN_WITHIN_S", 0.0)
    with pytest.raises(StatusError, match="No adapter found for"):
        await client.load_adapter("policy-v000003", str(tmp_path / "nowhere"))


async def test_new_weights_show_in_the_logprobs_and_the_spans(client, make_request):
    tokens = np.array([5, 9, 23, 4], np.int32)
    before = await client.prompt_logprobs("fake", tokens)
    np.testing.assert_allclose(before, expected_logprobs(tokens.tolist(), 0), rtol=1e-6)
    await client.pause()
    await client.start_weight_update()
    await client.update_weights({"path": "/served/policy-v000012"})
    await client.finish_weight_update(12)
    await client.resume()
    after = await client.prompt_logprobs("fake", tokens)
    np.testing.assert_allclose(after, expected_logprobs(tokens.tolist(), 12), rtol=1e-6)
    assert not np.array_equal(before, after)
    turn = await client.generate(make_request())
    assert turn.version_spans == (VersionSpan(12, 0, turn.output_ids.size),)


async def test_a_server_that_ignores_a_load_serves_the_old_weights(fake, client):
    fake.state.ignore_loads = True
    await client.start_weight_update()
    await client.update_weights({"path": "/served/policy-v000012"})
    await client.finish_weight_update(12)
    scored = await client.prompt_logprobs("fake", np.array([5, 9, 23], np.int32))
    np.testing.assert_allclose(scored, expected_logprobs([5, 9, 23], 0), rtol=1e-6)


async def test_paused_requests_wait_and_none_is_lost(fake, client, make_request):
    await client.pause()
    waiting = asyncio.gather(*(client.generate(make_request(seed=i)) for i in range(5)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await client.resume()
    assert len(await asyncio.wait_for(waiting, 120)) == 5


async def test_ready_is_waited_for_and_given_up(fake, client):
    fake.state.ready_after = 2
    waits: list[str] = []
    await client.wait_ready(10, lambda _, why: waits.append(why))
    assert waits == ["/health answers 503"] * 2
    fake.state.ready_after = 10**6
    with pytest.raises(UnreachableError, match=r"answers 503.*server\.vllm_server_timeout"):
        await client.wait_ready(0.1)


async def test_an_address_where_nobody_listens_is_told_as_such():
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        async with ServerClient(f"http://127.0.0.1:{bound.getsockname()[1]}") as client:
            with pytest.raises(UnreachableError, match=r"\(no server listens there\)"):
                await client.wait_ready(0.0)


async def test_what_is_no_server_is_not_waited_for(fake):
    async with ServerClient(f"{fake.url}/elsewhere") as client:
        with pytest.raises(ServerError, match="/health answers 404, so it is no vLLM server"):
            await client.wait_ready(30)


@pytest.fixture
def self_signed(tmp_path: Path) -> ssl.SSLContext:
    """TLS with a certificate that no authority signed."""
    if shutil.which("openssl") is None:
        pytest.skip("a certificate is made by openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    command = ["openssl", "req", *request, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_a_certificate_of_nobodys_is_not_waited_for(make_request, self_signed):
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=self_signed)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    said = r"/health did not answer \(.*self.signed.*\); set SSL_CERT_FILE"
    async with ServerClient(url, retries=AT_ONCE) as client:
        with pytest.raises(UnreachableError, match=said):
            await client.wait_ready(60)
        with pytest.raises(UnreachableError, match=r"self.signed.*; set SSL_CERT_FILE"):
            await client.generate(make_request())
    server.close()


async def test_routes_that_a_variable_turns_on_name_it(fake, client):
    fake.state.dev_mode = False
    for call in (client.pause, client.server_info, client.start_weight_update):
        with pytest.raises(RouteMissingError, match="VLLM_SERVER_DEV_MODE=1"):
            await call()
    assert await client.weight_version() is None  # as of a vLLM before 0.32
    fake.state.enable_lora = False
    with pytest.raises(RouteMissingError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        await client.load_adapter("a", "/a")


async def test_the_api_key_is_sent_and_its_lack_named(make_request):
    with FakeServer(FakeState(api_key="s3cret")) as fake:
        async with ServerClient(fake.url, api_key="s3cret") as client:
            await client.generate(make_request())
            assert (await client.models())[0].name == "fake"
        async with ServerClient(fake.url) as client:
            with pytest.raises(StatusError, match=r"401.*server\.api_key_env"):
                await client.generate(make_request())


@pytest.mark.parametrize("key", ["secret\n", "clé"])
def test_a_key_that_no_header_can_carry_is_told_without_showing_it(key):
    with pytest.raises(ServerError, match=r"printable ASCII.*api_key_env") as caught:
        ServerClient("http://127.0.0.1:1", api_key=key)
    assert key not in str(caught.value)


async def test_load_and_info_are_read(client):
    load, info = await client.load(), await client.server_info()
    assert (load.kv_tokens, load.block_size) == (65536, 16)
    assert (info.max_loras, info.max_lora_rank, info.weight_transfer_backend) == (6, 16, "folder")
    assert (info.dtype, info.logprobs_mode) == ("float32", "processed_logprobs")


async def test_a_configured_client_has_the_key_and_the_timeout(
    make_config, make_request, monkeypatch
):
    monkeypatch.setenv("KEY_OF_TEST", "s3cret")
    config = make_config("server.api_key_env=KEY_OF_TEST", "server.vllm_server_timeout=0.3")
    with FakeServer(FakeState(api_key="s3cret", latency_s=30)) as fake:
        async with configured_client(config, fake.url) as client:
            assert (await client.models())[0].name == "fake"
            with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
                await client.generate(make_request())


def test_every_process_makes_its_clients_from_the_configuration():
    """Launcher, trainer and worker: none passes key or timeout by itself."""
    calls = re.compile(r"\b(ServerClient|configured_client)\(")
    package = Path(asyncgrpo.__file__).parent
    makers = {
        str(path.relative_to(package)): set(calls.findall(path.read_text()))
        for path in package.rglob("*.py")
        if calls.search(path.read_text())
    }
    assert makers.pop("server/client.py")
    assert makers == {
        "launch/processes/readiness.py": {"configured_client"},
        "rollout/worker.py": {"configured_client"},
        "training/publish.py": {"configured_client"},
    }
