"""Built-in reward functions, named in a recipe as `asyncgrpo.rewards:accuracy_reward`.

Their parameters by keyword alone (after the `*`) are options: they come from the recipe's `kwargs`,
never from a column of that name.
"""

from asyncgrpo.rewards.accuracy import accuracy_reward
from asyncgrpo.rewards.code import code_reward
from asyncgrpo.rewards.text import (
    exact_match_reward,
    format_reward,
    gsm8k_reward,
    length_reward,
)

__all__ = [
    "accuracy_reward",
    "code_reward",
    "exact_match_reward",
    "format_reward",
    "gsm8k_reward",
    "length_reward",
]
