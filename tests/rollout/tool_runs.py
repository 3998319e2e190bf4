"""Runs of the worker with tools or environments, against the fake server."""

import json

from asyncgrpo.metrics.window import reduce_window
from tests.fake_vllm import FakeServer, FakeState
from tests.rollout import chat_fakes as fakes
from tests.rollout.chat_fakes import call, heard, says
from tests.rollout.fakes import FakeTrainer, config, run

HOOKS = "tests.rollout.user_hooks"
TOOLS = "tests.rollout.tool_functions"
ENVIRONMENTS = "tests.rollout.environment_classes"
ADD, MULTIPLY = f"{TOOLS}:add", f"{TOOLS}:multiply"
ANY = f"{HOOKS}:random_reward"
G = 4
CONTEXT = 2048


def started_server():
    return FakeServer(FakeState(vocab_size=320, max_model_len=CONTEXT))


def write_rows(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def write_sums(path):
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + 1?"}], "target": i}
        for i in range(6)
    ]
    return write_rows(path, rows)


def recipe(server, data_path, rewards=(ANY,), **rollout):
    rollout = {"max_completion_length": 200, "tools": (ADD, MULTIPLY)} | rollout
    sections = {"rollout": rollout, "server": {"max_model_len": CONTEXT}}
    return config(data_path, server.url, rewards, **sections)


def replies(*texts):
    """A policy with these replies, one per turn."""

    def script(prompt_ids, seed):
        turn = heard(prompt_ids).count("<|im_start|>assistant") - 1
        text = texts[min(max(turn, 0), len(texts) - 1)]
        return says(text if isinstance(text, str) else text(prompt_ids, seed))

    return script


def some_sum(prompt_ids, seed):
    return call("add", a=seed % 7, b=1)


async def rolled(server, cfg, *, prompts=6, template=fakes.KEEPS, **trainer):
    made = FakeTrainer(num_prompts=prompts, **trainer)
    return await run(server, cfg, made, speaker=fakes.tokenizer(template))


def window(trainer):
    return reduce_window(trainer.metrics)
