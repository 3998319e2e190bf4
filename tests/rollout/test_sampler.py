"""One turn: which policy it asks for, how long it asks, what it makes of no answer."""

import asyncio

import numpy as np
import pytest

from asyncgrpo.errors import RunError, ServerError
from asyncgrpo.records import FinishReason, Turn
from asyncgrpo.rollout import sampler as module
from asyncgrpo.rollout.chat import Chat
from asyncgrpo.rollout.context import RolloutContext, enter_rollout
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.policy import CurrentPolicy, PolicyName
from asyncgrpo.rollout.sampler import Sampler
from asyncgrpo.server.failures import UnknownModelError, UnreachableError
from tests.rollout.fakes import config, tokenizer

OLD, NEW = PolicyName("policy-v000000", 0), PolicyName("policy-v000001", 1)
PATIENCE_S = 0.3


class Server:
    """Serves the policies in `names`; never answers a prompt that begins with `lost`."""

    def __init__(self, *names, lost=None):
        self.names, self.lost, self.asked = list(names), lost, []
        self.answers = asyncio.Event()
        self.answers.set()

    async def generate(self, request):
        self.asked.append(request.policy)
        if request.prompt_ids[0] == self.lost:
            await asyncio.sleep(0.02)
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
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(module, "NEXT_POLICY_TIMEOUT_S", 0.2)


async def test_a_first_turn_whose_policy_is_gone_asks_for_the_current_one():
    server = Server(NEW.name)
    turns, policy = sampler(server)
    context = rollout()
    asking = asyncio.ensure_future(turns.turn([1, 2]))
    await asyncio.sleep(0.05)
    policy.publish(NEW)  # it is on its way when the old one is gone
    await asking
    assert server.asked == [OLD.name, NEW.name]
    assert context.policy == NEW


async def test_a_policy_that_is_gone_and_not_replaced_costs_the_rollout():
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
    await asyncio.sleep(0.01)
    server.names = [NEW.name]
    policy.publish(NEW)
    second = asyncio.ensure_future(turns.turn([1, 3]))
    await asyncio.sleep(0.01)
    server.answers.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [isinstance(answer, ServerError) for answer in answers] == [True, False]


async def test_a_request_that_alone_gets_no_answer_costs_its_rollout():
    turns, _ = sampler(Server(OLD.name, lost=9))
    rollout()
    hopeless = asyncio.ensure_future(turns.turn([9]))
    while not hopeless.done():
        await turns.turn([1, 2])
        await asyncio.sleep(0.02)
    with pytest.raises(ServerError, match=r"no answer for 0 s .*while others did"):
        await hopeless


async def test_a_server_that_answers_nobody_ends_the_run():
    turns, _ = sampler(Server(OLD.name, lost=9))
    rollout()
    with pytest.raises(RunError, match="no server answered for"):
        async with asyncio.timeout(5):
            await turns.turn([9])
