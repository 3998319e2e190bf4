"""B12: groups are scored side by side, or the bar could not be met."""

import asyncio

from tests.bench import scoring


def test_waiting_rewards_wait_together():
    speed = asyncio.run(scoring._speed(scoring.async_waiting_reward))
    assert speed > 2 / scoring.WAIT_S  # one after another: 1 / WAIT_S
