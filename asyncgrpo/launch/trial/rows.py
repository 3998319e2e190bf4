r"""The user's own code at work on a few rows, without a model.

    Prompt --> right answer, the same in \boxed{}, empty, given texts --each reward--> TriedRow
           --> reset, get_reward of its environment                   ---------------> TriedRow

What a reward raises costs its column in the row and is kept as an error; the others go on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncgrpo.config import Config, RewardSource
from asyncgrpo.errors import DataError, HookError
from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rewards.gold import gold_of, gold_values
from asyncgrpo.rollout.chat.tokenizer import load_tokenizer
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Messages, Rollout, RolloutGroup
from asyncgrpo.rollout.inputs import Inputs
from asyncgrpo.rollout.loop import AsyncRolloutLoop
from asyncgrpo.rollout.one_rollout import with_observation
from asyncgrpo.rollout.scoring.advantages import total_rewards
from asyncgrpo.rollout.tools.tools import schema_of

# Columns that mostly hold the right answer, where no reward's `kwargs.column` names one.
GOLD_COLUMNS = ("solution", "answer", "ground_truth", "final_answer", "gold", "target", "label")


@dataclass(frozen=True, slots=True)
class TriedCompletion:
    """A text that stands for the model's answer, and its rewards."""

    label: str  # "the answer", "in \boxed{}", "empty", "given"
    text: str
    rewards: dict[str, float]  # by source, unweighted; NaN = not scored
    total: float | None  # weighted; None where a source failed


@dataclass(slots=True)
class TriedRow:
    """A row, the prompt that it becomes, and what the user's code made of it."""

    row_index: int
    prompt: str | None = None  # as the model is shown it; None where a loop of one's own makes it
    environment: str | None = None  # its name, its reward before any action
    completions: list[TriedCompletion] = field(default_factory=list[TriedCompletion])
    errors: list[str] = field(default_factory=list[str])

    def best(self, *, empty: bool) -> float | None:
        """The largest total of the empty completions, or of the others.

        None where none has one.
        """
        totals = [
            tried.total
            for tried in self.completions
            if (tried.text == "") == empty and tried.total is not None
        ]
        return max((t for t in totals if not math.isnan(t)), default=None)


async def try_rows(config: Config, num_rows: int, given: Sequence[str]) -> list[TriedRow]:
    """Try the rows that a run begins with, after the worker's own checks.

    Raises:
        UserError: a mistake that would end the worker before its first request.
    """
    environments = config.rollout.environments is not None
    prompts = load_prompts(config.data, seed=config.rollout.seed, environment_prompts=environments)
    trial = _Trial(Inputs(config, load_tokenizer(config), prompts), given)
    rows: list[TriedRow] = []
    for position in range(min(num_rows, len(prompts))):
        prompt = await prompts.take(seed=config.rollout.seed, epoch=0, position=position)
        rows.append(await trial.tried(prompt))
    return rows


def right_answers(
    columns: Mapping[str, Any], sources: Sequence[RewardSource]
) -> list[tuple[str, str]]:
    r"""The row's right answer as completions, each with a label.

    The column's value as it stands where it is text or a number, and the answer that it states in
    `\boxed{}`; none where no column holds one.
    """
    named = next((s.kwargs["column"] for s in sources if "column" in s.kwargs), None)
    usual = [name for name in GOLD_COLUMNS if name in columns][:1]
    if named is None and not usual:
        return []
    try:
        values = gold_values(
            {name: [value] for name, value in columns.items()}, named, "--try", *usual
        )[0]
        golds = gold_of(values)
    except HookError:  # a column of another kind, such as the tests of a program
        return []
    plain = [(n, str(v)) for n, v in values if isinstance(v, (str, int, float)) and v != ""]
    found = [(f"column {name}", text) for name, text in plain]
    return [*found, *(("in \\boxed{}", f"\\boxed{{{gold.text}}}") for gold in golds[:1])]


class _Trial:
    """The checked parts of a worker, applied to one row after another."""

    def __init__(self, inputs: Inputs, given: Sequence[str]) -> None:
        self._inputs = inputs
        self._given = [("given", text) for text in given]
        self._sources = inputs.config.rollout.rewards
        self._schemas = [schema_of(tool, key="rollout.tools") for tool in inputs.tools]

    async def tried(self, prompt: Prompt) -> TriedRow:
        """The row that the user's code makes of a prompt."""
        row = TriedRow(prompt.row_index)
        messages = await self._begun(prompt, row)
        if messages and self._inputs.loop_class is AsyncRolloutLoop:
            try:
                row.prompt = self._inputs.chat.opened_text(messages, self._all_schemas(prompt))
            except DataError as error:
                row.errors.append(f"row {row.row_index}: {error}")
        if self._inputs.rewards:
            answers = right_answers(prompt.columns, self._sources)
            await self._score(prompt, messages, [*answers, ("empty", ""), *self._given], row)
        return row

    async def _begun(self, prompt: Prompt, row: TriedRow) -> Messages:
        """The conversation as a rollout begins it: with the observation of its environment."""
        environments = self._inputs.environments
        if environments is None:
            return prompt.messages
        recorder = Recorder()
        try:
            kind = environments.kind_of(prompt.row, f"row {prompt.row_index}")
            rented = environments.rent(
                kind, prompt.columns, seed=self._inputs.config.rollout.seed, recorder=recorder
            )
            async with rented as episode:
                reward = await environments.reward(episode, recorder=recorder)
        except (DataError, HookError) as error:
            row.errors.append(f"row {row.row_index}: {error}")
            return prompt.messages
        judged = "gives no reward" if reward is None else f"reward before any action {reward:g}"
        row.environment = f"{kind.name}: {judged}"
        if episode.observation is None:
            return prompt.messages
        return with_observation(prompt.messages, episode.observation)

    def _all_schemas(self, prompt: Prompt) -> list[Any]:
        environments = self._inputs.environments
        if environments is None:
            return self._schemas
        return [*self._schemas, *environments.kind_of(prompt.row, "").schemas]

    async def _score(
        self, prompt: Prompt, messages: Messages, tried: Sequence[tuple[str, str]], row: TriedRow
    ) -> None:
        group = self._group(prompt, messages, [text for _, text in tried])
        by_name: dict[str, list[float]] = {}
        weighted: list[Any] = []
        for reward in self._inputs.rewards:
            try:
                rewards_G = await reward.score(group)
            except HookError as error:
                row.errors.append(f"row {row.row_index}: {error}")
                continue
            by_name[reward.name] = rewards_G.tolist()
            weighted.append(reward.weight * rewards_G)
        whole = len(weighted) == len(self._inputs.rewards)
        totals = total_rewards(np.stack(weighted)).tolist() if whole else [None] * len(tried)
        for i, (label, text) in enumerate(tried):
            rewards = {name: values[i] for name, values in by_name.items()}
            row.completions.append(TriedCompletion(label, text, rewards, totals[i]))

    def _group(self, prompt: Prompt, messages: Messages, texts: Sequence[str]) -> RolloutGroup:
        """A group as a reward function gets it; each completion ended by itself."""
        tokenizer = self._inputs.tokenizer
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        rollouts = [
            Rollout(
                completion=[{"role": "assistant", "content": text}],
                completion_ids=[*tokenizer.encode(text, add_special_tokens=False), *end],
                turns=[],
            )
            for text in texts
        ]
        return RolloutGroup(
            rollouts=rollouts,
            prompts=[[dict(message) for message in messages] for _ in texts],
            reward_kwargs={name: [value] * len(texts) for name, value in prompt.columns.items()},
            model_version=0,
            group_id=0,
            row_index=prompt.row_index,
            env_rewards=[None] * len(texts),
        )
