"""The advantages that `rollout.advantage` names by one word; each function here is one.

    r = a reward of the group,  m, s = mean and population std of its G rewards
    S = population std of the batch: the rewards of the latest groups of this worker, this one's too

    advantage    of a rollout               published as
    group_std    (r - m) / (s + 1e-8)       GRPO
    none_std     r - m                      Dr. GRPO: hard and easy prompts are not scaled up
    rloo         G / (G - 1) (r - m)        leave-one-out: r less the mean of the other rewards
    batch_std    (r - m) / (S + 1e-8)       mean of the group, std of the batch
    max_rl       (r - m) / m                maximum likelihood: of rewards that are 0 or more

A function gets the scored rewards of a group in which two differ, so that G is 2 or more, and the
batch as one array. To add one, write its function: the recipe, `validate` and the configuration
reference read the names from this file.

Shape suffixes: G = the scored rollouts of the group, B = the scored rollouts of the batch.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from asyncgrpo.errors import HookError

RewardsG: TypeAlias = Float64[np.ndarray, "G"]
RewardsB: TypeAlias = Float64[np.ndarray, "B"]

STD_FLOOR = 1e-8  # keeps two nearly equal rewards from standardizing to infinity


def group_std(rewards_G: RewardsG, batch_B: RewardsB) -> RewardsG:  # noqa: ARG001 - as all take
    """The rewards, standardized within the group.

    >>> group_std(np.array([1.0, 0.0, 1.0, 0.0]), np.empty(0)).round(3).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    centered_G = _centered(rewards_G)
    return centered_G / (centered_G.std() + STD_FLOOR)


def none_std(rewards_G: RewardsG, batch_B: RewardsB) -> RewardsG:  # noqa: ARG001 - as all take
    """The rewards less their mean."""
    return _centered(rewards_G)


def rloo(rewards_G: RewardsG, batch_B: RewardsB) -> RewardsG:  # noqa: ARG001 - as all take
    """Each reward less the mean of the others."""
    return _centered(rewards_G) * (rewards_G.size / (rewards_G.size - 1))


def batch_std(rewards_G: RewardsG, batch_B: RewardsB) -> RewardsG:
    """The rewards less their mean, over the std of the batch."""
    return _centered(rewards_G) / (batch_B.std() + STD_FLOOR)


def max_rl(rewards_G: RewardsG, batch_B: RewardsB) -> RewardsG:  # noqa: ARG001 - as all take
    """The rewards less their mean, over their mean.

    Raises:
        HookError: a reward is negative.
    """
    if rewards_G.min() < 0:
        raise HookError(
            f"rollout.advantage: max_rl divides by the mean reward and takes rewards of 0 or more, "
            f"such as 1 for right and 0 for wrong; got {rewards_G.min():g}: use group_std, or "
            "shift the rewards"
        )
    return _centered(rewards_G) / rewards_G.mean()


def _centered(rewards_G: RewardsG) -> RewardsG:
    return rewards_G - rewards_G.mean()
