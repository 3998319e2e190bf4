"""B12: groups are scored side by side, or the bar could not be met."""

import asyncio

from tests.bench import scoring


def test_waiting_rewards_wait_together():
    running = most = 0

    async def counted(completions, **columns):
        nonlocal running, most
        running += 1
        most = max(most, running)
        scores = await scoring.async_waiting_reward(completions, **columns)
        running -= 1
        return scores

    assert asyncio.run(scoring._speed(counted)) > 0
    assert most > 2  # one after another: 1
