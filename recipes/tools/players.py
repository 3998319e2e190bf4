"""The pass rate of conversations, sampled with the model's tools, many at once.

open conversations --generate--> replies --calls--> results --> open conversations ...
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.chat.reply_parsing import ToolCall
from asyncgrpo.rollout.group import TurnRecord
from asyncgrpo.rollout.tools.tools import schema_of
from recipes.demo.reward import last_box
from recipes.teaching import sample
from recipes.tools.arithmetic import add, multiply
from recipes.tools.counter import Counter
from recipes.tools.lessons import Message, Tools, all_sums

MOST_TURNS = 10
MOST_TOKENS = 32  # of a reply
EOS_ID = 2


@dataclass
class Game:
    """A conversation under way."""

    messages: list[Message]
    tools: Tools
    is_right: Callable[[str], bool]  # of the last reply
    prompt_ids: Any = None
    schemas: list[dict[str, Any]] = field(default_factory=list)


def summing(rng: random.Random, count: int) -> list[Game]:
    """Random questions of recipes/tools.yaml."""
    games = []
    for asked in rng.choices(all_sums(), k=count):
        user = {"role": "user", "content": asked.question}
        games.append(
            Game([user], [add, multiply], lambda text, asked=asked: last_box(text) == asked.answer)
        )
    return games


def counting(rng: random.Random, count: int) -> list[Game]:
    """Random targets of recipes/counter.yaml."""
    games = []
    for _ in range(count):
        counter = Counter()
        user = {"role": "user", "content": counter.reset(rng.randrange(2**32))}
        games.append(Game([user], [counter.increment], lambda _, c=counter: bool(c.get_reward())))
    return games


class Player:
    """The model at temperature 1."""

    def __init__(self, model: PreTrainedModel, chat: Chat) -> None:
        self._model = model
        self._chat = chat

    def right_share(self, games: Sequence[Game]) -> float:
        """Play all games to their end; the share that ends right and by itself."""
        for game in games:
            game.schemas = [schema_of(tool, key="game") for tool in game.tools]
            if not self._chat.reads_tools:
                self._chat.prepare_tools(game.schemas)
            game.prompt_ids = self._chat.render(game.messages, game.schemas)
        right, open_games = 0, list(games)
        for _ in range(MOST_TURNS):
            going_on: list[Game] = []
            for game, output in zip(open_games, self._replies(open_games), strict=True):
                if output[-1] != EOS_ID:
                    continue
                reply = self._chat.reply(output, game.schemas)
                if not reply.calls:
                    right += game.is_right(reply.content)
                elif self._answered(game, output):
                    going_on.append(game)
            open_games = going_on
            if not open_games:
                break
        return right / len(games)

    def _answered(self, game: Game, output: list[int]) -> bool:
        """Make the calls of a reply; whether all could be made."""
        reply = self._chat.reply(output, game.schemas)
        tools = {tool.__name__: tool for tool in game.tools}
        game.messages.append({"role": "assistant", "content": reply.text})
        for call in reply.calls:
            if not isinstance(call, ToolCall) or call.name not in tools:
                return False
            try:
                result = tools[call.name](**call.arguments)
            except (TypeError, ValueError):
                return False
            game.messages.append({"role": "tool", "content": str(result)})
        turn = TurnRecord(game.prompt_ids, output, finish_reason=FinishReason.STOP)
        game.prompt_ids = self._chat.continued(turn, game.messages, len(reply.calls), game.schemas)
        return True

    def _replies(self, games: Sequence[Game]) -> list[list[int]]:
        longest = max(len(game.prompt_ids) for game in games)
        prompts = torch.tensor(
            [[0] * (longest - len(g.prompt_ids)) + list(g.prompt_ids) for g in games]
        )
        mask = torch.tensor(
            [[0] * (longest - len(g.prompt_ids)) + [1] * len(g.prompt_ids) for g in games]
        )
        ids = {"pad_token_id": 0, "eos_token_id": EOS_ID}
        replies = sample(self._model, prompts, mask, MOST_TOKENS, **ids)
        return [_until_eos(reply) for reply in replies]


def _until_eos(reply: list[int]) -> list[int]:
    return reply[: reply.index(EOS_ID) + 1] if EOS_ID in reply else reply
