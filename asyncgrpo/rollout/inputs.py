"""What a worker is made of before it meets the trainer, all of it checked.

    config, tokenizer, prompts  -->  chat, loop class, reward functions

Whatever the recipe, the dataset or a hook has wrong shows here, before the first request.
"""

from typing import Any

from asyncgrpo.config import Config
from asyncgrpo.errors import ConfigError, HookError, UserError
from asyncgrpo.rollout.chat import Chat, Tokenizer
from asyncgrpo.rollout.loop import AsyncRolloutLoop, loop_class
from asyncgrpo.rollout.prompts import Prompts
from asyncgrpo.rollout.sampler import Sampler
from asyncgrpo.rollout.scoring import load_rewards


class Inputs:
    """The checked parts; making them raises a `UserError` that says what is wrong."""

    def __init__(self, config: Config, tokenizer: Tokenizer, prompts: Prompts) -> None:
        self.config = config
        self.tokenizer: Any = tokenizer
        self.prompts = prompts
        self.chat = Chat(tokenizer, config.rollout)
        self.loop_class = loop_class(config.rollout.loop)
        self.rewards = load_rewards(config.rollout.rewards, prompts.column_names)
        if not self.rewards and self.loop_class is AsyncRolloutLoop:
            raise ConfigError(
                "rollout.rewards is empty, so nothing scores the rollouts; name at least one, "
                "such as `asyncgrpo.rewards:accuracy_reward`"
            )

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a turn."""
        eos = self.tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset({int(eos)})


def make_loop(inputs: Inputs, sampler: Sampler) -> AsyncRolloutLoop:
    """The recipe's loop.

    Raises:
        HookError: its constructor failed.
    """
    try:
        return inputs.loop_class(inputs.config, inputs.tokenizer, inputs.chat, sampler)
    except UserError:
        raise
    except Exception as error:
        raise HookError(
            f"{inputs.loop_class.__name__} cannot be built ({type(error).__name__}: {error}); "
            "make what it needs in `setup`, not in `__init__`"
        ) from error
