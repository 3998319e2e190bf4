"""The lease of a run on its servers, over real requests to the fake server."""

import asyncio

import pytest

from asyncgrpo.errors import ServerError
from asyncgrpo.launch.processes import server_lease
from asyncgrpo.launch.processes.server_lease import ServerLease, has_renewed
from asyncgrpo.server.client import ServerClient
from asyncgrpo.server.lease import LEASE_S, Claim, Holder
from tests.fake_vllm import FakeServer, FakeState


@pytest.fixture
def server():
    with FakeServer(FakeState()) as fake:
        yield fake


def lease(name, warn=lambda _: None):
    return ServerLease(name, ServerClient, warn)


async def holder(server):
    """The holder, as a stranger that gives back what it never had is told."""
    async with ServerClient(server.url) as client:
        return await client.claim(Claim("stranger", "a stranger", release=True))


async def test_a_server_is_held_until_the_end(server):
    async with lease("demo") as ours:
        await ours.claim(server.url)
        assert (await holder(server)).name == "demo"
    assert await holder(server) == Holder()


async def test_the_second_run_is_refused_once_the_first_has_renewed(server, monkeypatch):
    monkeypatch.setattr(server_lease, "RENEW_S", 0.01)
    monkeypatch.setattr(server_lease, "ASK_AGAIN_S", 0.0)
    async with lease("demo in /runs/demo") as first:
        await first.claim(server.url)
        async with lease("other") as second:
            with pytest.raises(ServerError, match=r"in use: the run demo in /runs/demo trains"):
                await second.claim(server.url)
        assert (await holder(server)).name == "demo in /runs/demo"


async def test_the_server_of_a_killed_run_is_free_after_a_while(server, monkeypatch):
    monkeypatch.setattr(server_lease, "ASK_AGAIN_S", 0.0)
    async with ServerClient(server.url) as killed:
        await killed.claim(Claim("dead", "killed"))  # and never renews
    async with lease("next") as ours:
        claiming = asyncio.create_task(ours.claim(server.url))
        await asyncio.sleep(0)
        server.state.seconds_ahead = LEASE_S + 1
        await claiming
        assert (await holder(server)).name == "next"


async def test_a_server_without_the_middleware_is_used_as_it_is(server):
    server.state.packed = False
    async with lease("demo") as ours:
        await ours.claim(server.url)


async def test_a_run_that_lost_its_server_says_so_once(server, monkeypatch):
    monkeypatch.setattr(server_lease, "RENEW_S", 0.0)
    said, warned = [], asyncio.Event()

    def warn(text):
        said.append(text)
        warned.set()

    async with lease("slept", warn) as ours:
        await ours.claim(server.url)
        server.state.seconds_ahead = LEASE_S + 1
        async with ServerClient(server.url) as client:
            while (await client.claim(Claim("other", "other"))).owner != "other":
                server.state.seconds_ahead += LEASE_S + 1
        await warned.wait()
    assert said == [f"the run other has taken {server.url} over: stop one of them"]


async def test_a_server_that_is_gone_holds_no_end_up():
    async with lease("demo") as ours:
        with FakeServer(FakeState()) as fake:
            await ours.claim(fake.url)


@pytest.mark.parametrize(
    ("before", "after", "renewed"),
    [
        (None, Holder("a", "a", 3.0), False),
        (Holder("a", "a", 3.0), Holder("a", "a", 3.5), False),
        (Holder("a", "a", 3.0), Holder("a", "a", 0.1), True),
        (Holder("a", "a", 3.0), Holder("b", "b", 3.5), True),
    ],
)
def test_a_holder_that_lives_is_told_from_one_that_was_killed(before, after, renewed):
    assert has_renewed(before, after) is renewed
