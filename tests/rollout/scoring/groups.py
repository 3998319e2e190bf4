"""A group of rollouts by their texts, and a reward function as the recipe gives it."""

from asyncgrpo.config import RewardSource
from asyncgrpo.rollout.group import Rollout, RolloutGroup
from asyncgrpo.rollout.scoring.scoring import RewardFunction


def group(*texts, rewards=None, **columns):
    rewards = rewards or [None] * len(texts)
    rollouts = [
        Rollout([{"role": "assistant", "content": text}], [1, 2, i], [], reward=reward)
        for i, (text, reward) in enumerate(zip(texts, rewards, strict=True))
    ]
    return RolloutGroup(
        rollouts=rollouts,
        prompts=[[{"role": "user", "content": "hi"}]] * len(texts),
        reward_kwargs={name: [value] * len(texts) for name, value in columns.items()},
        model_version=0,
        group_id=0,
        row_index=0,
        env_rewards=[None] * len(texts),
    )


def reward(function, **fields):
    return RewardFunction(RewardSource(path=f"m:{function.__name__}", **fields), function)
