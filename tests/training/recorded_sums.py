"""Groups of the demo's shape, as its model answers: sums, 8 completions each, real logprobs.

    sums model  --sample 8 x 12 tokens, temperature 1-->  GroupReady, ...      (no server)

Every group trains the same number of tokens, more than it forwards, so three of them fill a row
exactly, on however many ranks: what a step trains does not depend on how its rows are planned.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.channel.messages import GroupReady
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import NO_TOKEN, Sample, SampleKey
from asyncgrpo.rollout.scoring.advantages import AdvantageRule, has_signal
from recipes.demo.reward import boxed_sum
from recipes.demo.sums import Sum, dataset_row

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "recipes" / "demo" / "base-model"
GROUP_SIZE, COMPLETION, K = 8, 12, 8
GROUPS_PER_ROW, ROWS_PER_STEP = 3, 2
ANSWER_TOKENS = 6  # "\\boxed{" "1" "2" "3" "}" eos: the sums asked for have three digits
GROUPS_PER_STEP = GROUPS_PER_ROW * ROWS_PER_STEP


class Recorded(NamedTuple):
    groups: list[tuple[Sample, ...]]
    row_tokens: int  # trained by GROUPS_PER_ROW groups


class _Rollout(NamedTuple):
    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]

    def cut(self, length: int) -> "_Rollout":
        return self._replace(
            output=self.output[:length],
            logprobs=self.logprobs[:length],
            top_ids=self.top_ids[:length],
            top_logprobs=self.top_logprobs[:length],
        )


@functools.cache
def record(num_groups: int) -> Recorded:
    """The first groups whose rewards differ, each cut to the same number of trained tokens."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    rng = np.random.default_rng(0)
    asked = [Sum(*map(int, rng.integers(50, 100, 2))) for _ in range(3 * num_groups // 2)]
    sampled = _sample(tokenizer, asked)
    size = GROUP_SIZE * ANSWER_TOKENS
    groups: list[tuple[Sample, ...]] = []
    for numbers, whole in zip(asked, sampled, strict=True):
        group = _cut_to(size, whole)
        rewards = _rewards(tokenizer, numbers, group)
        if _num_trained(group) == size and has_signal(rewards) and len(groups) < num_groups:
            advantages = AdvantageRule("group_std").of(rewards)
            groups.append(
                tuple(
                    _sample_of(len(groups), index, rollout, advantages[index])
                    for index, rollout in enumerate(group)
                )
            )
    assert len(groups) == num_groups, f"only {len(groups)} of {num_groups} groups"
    row_tokens = GROUPS_PER_ROW * size
    for first in range(0, num_groups, GROUPS_PER_ROW):
        samples = [s for group in groups[first : first + GROUPS_PER_ROW] for s in group]
        assert build_row(samples).input_ids_N.size < row_tokens
    return Recorded(groups, row_tokens)


def group_of(ordinal: int, num_groups: int) -> GroupReady:
    """The group that the worker sends for an ordinal."""
    samples = record(num_groups).groups[ordinal]
    return GroupReady(0, ordinal, ordinal, samples)


def _in_parts(items: list, size: int) -> list[list]:
    return [items[first : first + size] for first in range(0, len(items), size)]


@torch.no_grad()
def _sample(tokenizer, asked: list[Sum]) -> list[list[_Rollout]]:
    """GROUP_SIZE answers to each; all prompts have the same length."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    prompts = [
        tokenizer.apply_chat_template(dataset_row(numbers)["prompt"], add_generation_prompt=True)[
            "input_ids"
        ]
        for numbers in asked
    ]
    generator, columns, cache = torch.Generator().manual_seed(0), [], None
    tokens = torch.tensor(prompts).repeat_interleave(GROUP_SIZE, 0)
    for _ in range(COMPLETION):
        output = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logprobs = output.past_key_values, output.logits[:, -1].float().log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        top = logprobs.topk(K)
        columns.append((tokens, logprobs.gather(1, tokens), top.indices, top.values))
    parts = [torch.stack(part, 1).squeeze(-1).tolist() for part in zip(*columns, strict=True)]
    eos = model.config.eos_token_id
    rollouts = []
    for at, (output, *rest) in enumerate(zip(*parts, strict=True)):
        end = output.index(eos) + 1 if eos in output else COMPLETION
        rollouts.append(_Rollout(prompts[at // GROUP_SIZE], output, *rest).cut(end))
    return _in_parts(rollouts, GROUP_SIZE)


def _rewards(tokenizer, numbers: Sum, group: list[_Rollout]) -> np.ndarray:
    outputs = [rollout.output for rollout in group]
    texts = [[{"content": tokenizer.decode(ids, skip_special_tokens=True)}] for ids in outputs]
    answers = [dataset_row(numbers)["answer"]] * len(group)
    return np.array(boxed_sum(texts, outputs, answers))


def _num_trained(group: list[_Rollout]) -> int:
    return sum(len(rollout.output) for rollout in group)


def _cut_to(size: int, group: list[_Rollout]) -> list[_Rollout]:
    """Take last tokens from the longest answers until `size` tokens are left."""
    group = list(group)
    while _num_trained(group) > size:
        longest = max(range(len(group)), key=lambda index: len(group[index].output))
        group[longest] = group[longest].cut(len(group[longest].output) - 1)
    return group


def _sample_of(ordinal: int, index: int, rollout: _Rollout, advantage: float) -> Sample:
    before, n = len(rollout.prompt), len(rollout.prompt) + len(rollout.output)
    trained = (np.arange(n) >= before).astype(np.uint8)
    logprobs = np.zeros(n, np.float32)
    logprobs[before:] = rollout.logprobs
    top_ids = np.full((n, K), NO_TOKEN, np.int32)
    top_ids[before:] = rollout.top_ids
    top_logprobs = np.full((n, K), -np.inf, np.float32)
    top_logprobs[before:] = rollout.top_logprobs
    return Sample(
        key=SampleKey(0, ordinal, index),
        input_ids=np.array(rollout.prompt + rollout.output, np.int32),
        trained=trained,
        sampler_logprobs=logprobs,
        advantage=float(advantage),
        policy_version=0,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        rollout=index,
    )
