"""The parts of a worker before it meets the trainer, all of them checked.

    config, tokenizer, prompts  -->  chat, loop class, reward functions, tools, environments

Mistakes in the recipe, the dataset or a hook show here, before the first request.
"""

import itertools
from typing import Any

from asyncgrpo.channel.shares import ALONE, Share
from asyncgrpo.config import Config, known
from asyncgrpo.errors import ConfigError, DataError, HookError, UserError
from asyncgrpo.process.user_code import describe_hook_error
from asyncgrpo.rollout.chat.chat import Chat, Tokenizer
from asyncgrpo.rollout.data.prompts import PROMPTS_RENDERED_AT_START, PromptSource
from asyncgrpo.rollout.loop import AsyncRolloutLoop, loop_class
from asyncgrpo.rollout.sampling.sampler import Sampler
from asyncgrpo.rollout.sampling.stop_tokens import stop_tokens
from asyncgrpo.rollout.scoring.advantages import AdvantageRule
from asyncgrpo.rollout.scoring.scoring import load_rewards
from asyncgrpo.rollout.tools.environments import load_environments
from asyncgrpo.rollout.tools.tools import load_tools, schema_of


class Inputs:
    """The checked parts; making them raises a `UserError` that names the mistake."""

    def __init__(
        self, config: Config, tokenizer: Tokenizer, prompts: PromptSource, share: Share = ALONE
    ) -> None:
        self.config = config
        self.share = share
        self.tokenizer: Any = tokenizer
        self.prompts = prompts
        self.chat = Chat(
            tokenizer, config.rollout, max_model_len=known(config.server.max_model_len)
        )
        self.loop_class = loop_class(config.rollout.loop)
        AdvantageRule(config.rollout.advantage)  # a mistake shows here; the loop has its own
        self.rewards = load_rewards(config.rollout.rewards, prompts.column_names)
        self.tools = load_tools(config.rollout.tools)
        self.environments = load_environments(
            config.rollout.environments,
            most_instances=share.of(config.rollout.max_concurrent_rollouts),
            timeout_s=config.rollout.environment_timeout_s,
        )
        model = config.model
        self.stop_tokens = stop_tokens(tokenizer.eos_token_id, model.name_or_path, model.revision)
        self._check_environments()
        self._check_tools()
        self._check_scores()
        self._check_prompts()

    def _check_environments(self) -> None:
        """Checks that every row has its environment, and every `reset` its keywords."""
        if self.environments is None:
            return
        for kind in self.environments.kinds:
            kind.check_columns(self.prompts.column_names)
        for prompt in self.prompts.checked() if self.environments.by_column else ():
            self.environments.kind_of(prompt.row, f"row {prompt.row_index}")

    def _check_tools(self) -> None:
        """Checks that all tools can be described to the model, in every environment."""
        kinds = self.environments.kinds if self.environments else []
        if not self.tools and not kinds:
            return
        for kind in kinds or [None]:
            schemas = [schema_of(tool, key="rollout.tools") for tool in self.tools]
            schemas += kind.schemas if kind else []
            names = [schema["function"]["name"] for schema in schemas]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice and kind:
                raise HookError(
                    f"rollout.environments: `{kind.name}.{twice}` has the name of a tool in "
                    "rollout.tools; rename one of them"
                )
            if schemas:
                self.chat.prepare_tools(schemas)

    def _check_prompts(self) -> None:
        """Checks that the template shows the first prompts whole; later ones as they come up."""
        if self.environments is not None or self.loop_class is not AsyncRolloutLoop:
            return  # what is rendered is not the row's conversation alone
        schemas = [schema_of(tool, key="rollout.tools") for tool in self.tools]
        for prompt in itertools.islice(self.prompts.checked(), PROMPTS_RENDERED_AT_START):
            try:
                self.chat.check(prompt.messages, schemas)
            except DataError as error:
                raise DataError(f"row {prompt.row_index}: {error}") from error

    def _check_scores(self) -> None:
        kinds = self.environments.kinds if self.environments else []
        for reward in self.rewards:
            if reward.name in {kind.cls.__name__ for kind in kinds}:
                raise ConfigError(
                    f"rollout.rewards: `{reward.name}` has the name of an environment, whose "
                    "reward is named so in metrics; give it another `name`"
                )
        judges = self.rewards or any(kind.has_reward for kind in kinds)
        if not judges and self.loop_class is AsyncRolloutLoop:
            raise ConfigError(
                "rollout.rewards is empty, so nothing scores the rollouts; name at least one, "
                "such as `asyncgrpo.rewards:accuracy_reward`"
                + (", or give the environment a `get_reward`" if kinds else "")
            )


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
            f"{inputs.loop_class.__name__} cannot be built ({describe_hook_error(error)}); "
            "make what it needs in `setup`, not in `__init__`"
        ) from error
