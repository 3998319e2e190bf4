"""One turn: the policy of its request, its patience, its errors."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from asyncgrpo.errors import RunError, ServerError
from asyncgrpo.records import FinishReason, Turn
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.sampling import sampler as module
from asyncgrpo.rollout.sampling.context import RolloutContext, enter_rollout
from asyncgrpo.rollout.sampling.policy import CurrentPolicy, PolicyName
from asyncgrpo.rollout.sampling.sampler import Sampler
from asyncgrpo.server import retries
from asyncgrpo.server.failures import UnknownModelError, UnreachableError
from tests.rollout.fakes import config, tokenizer

OLD, NEW = PolicyName("policy-v000000", 0), PolicyName("policy-v000001", 1)
PATIENCE_S = 0.3


class Server:
    """Serves the policies in `names`; never answers a prompt that begins with `lost`.

    `now` is what the clock shows: each request that is lost takes 20 ms.
    """

    def __init__(self, *names, lost=None):
        self.names, self.lost, self.asked = list(names), lost, []
        self.now = 0.0
        self.answers = asyncio.Event()
        self.answers.set()

    async def generate(self, request):
        self.asked.append(request.policy)
        if request.prompt_ids[0] == self.lost:
            self.now += 0.02
            await asyncio.sleep(0)
            raise UnreachableError("timeout")
        if request.policy not in self.names:
            raise UnknownModelError(f"`{request.policy}` does not exist", 404)
        await self.answers.wait()
        return Turn(np.array([5], np.int32), np.array([-1.0], np.float32), FinishReason.STOP)


def sampler(server, policy=None):
    cfg = config("x", "http://x", ["m:f"], server={"vllm_server_timeout": PATIENCE_S})
    policy = policy or CurrentPolicy(OLD)
    return Sampler(cfg, server, policy, on_retry=lambda: None), policy


def rollout():
    context = RolloutContext(0, 0, 0, messages=[], tools=[], prompt_ids=None)
    enter_rollout(context)
    return context


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(retries, "OUTAGE_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(retries, "OUTAGE_LONGEST_WAIT_S", 0.001)


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what is waited for cannot notify
            await asyncio.sleep(0)


async def test_a_first_turn_whose_policy_is_gone_asks_for_the_current_one():
    server = Server(NEW.name)
    turns, policy = sampler(server)
    context = rollout()
    asking = asyncio.ensure_future(turns.turn([1, 2]))
    await until(lambda: server.asked)
    await asyncio.sleep(0.05)
    policy.publish(NEW)  # it is on its way when the old one is gone
    await asking
    assert server.asked == [OLD.name, NEW.name]
    assert context.policy == NEW


async def test_a_policy_that_is_gone_and_not_replaced_costs_the_rollout(monkeypatch):
    monkeypatch.setattr(module, "NEXT_POLICY_TIMEOUT_S", 0.2)
    turns, _ = sampler(Server())
    rollout()
    with pytest.raises(ServerError, match="no other was published"):
        await turns.turn([1, 2])


async def test_a_conversation_never_changes_policy_part_way():
    server = Server(OLD.name)
    turns, policy = sampler(server)
    context = rollout()
    await turns.turn([1, 2])
    server.names = [NEW.name]
    policy.publish(NEW)
    with pytest.raises(UnknownModelError):
        await turns.turn([1, 2, 5, 6])
    assert context.policy == OLD
    rollout()
    await turns.turn([1, 2])  # another rollout begins with the new one
    assert server.asked[-1] == NEW.name


async def test_a_policy_whose_name_was_told_to_an_agent_is_not_replaced_either():
    turns, policy = sampler(Server(NEW.name))
    rollout()
    cfg = config("x", "http://x", ["m:f"])
    loop = AsyncRolloutLoop(cfg, tokenizer(), Chat(tokenizer(), cfg.rollout), turns)
    assert loop.policy_name == OLD.name
    policy.publish(NEW)
    with pytest.raises(UnknownModelError):
        await turns.turn([1, 2])


async def test_turns_side_by_side_have_one_policy_or_none():
    server = Server(OLD.name)
    turns, policy = sampler(server)
    rollout()
    server.answers.clear()
    first = asyncio.ensure_future(turns.turn([1, 2]))  # under way with the old policy
    await until(lambda: server.asked == [OLD.name])
    server.names = [NEW.name]
    policy.publish(NEW)
    second = asyncio.ensure_future(turns.turn([1, 3]))
    await until(lambda: server.asked == [OLD.name, OLD.name, NEW.name])
    server.answers.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [isinstance(answer, ServerError) for answer in answers] == [True, False]


@pytest.fixture
def lossy(monkeypatch):
    server = Server(OLD.name, lost=9)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: server.now))
    return server


async def test_a_request_that_alone_gets_no_answer_costs_its_rollout(lossy):
    turns, _ = sampler(lossy)
    rollout()
    hopeless = asyncio.ensure_future(turns.turn([9]))
    while not hopeless.done():
        await turns.turn([1, 2])
        await asyncio.sleep(0)
    with pytest.raises(ServerError, match=r"no answer for 0 s .*while others did"):
        await hopeless


async def test_a_server_that_answers_nobody_ends_the_run(lossy):
    turns, _ = sampler(lossy)
    rollout()
    with pytest.raises(RunError, match="no server answered for"):
        async with asyncio.timeout(120):
            await turns.turn([9])
