"""A loop whose rollouts an external agent makes, with requests of its own."""

import httpx
import numpy as np
import pytest

from asyncgrpo import AsyncRolloutLoop, Rollout, TurnRecord
from tests.fake_vllm import FakeServer, FakeState, expected_logprobs
from tests.rollout.agent_server import PATIENCE_S, AgentServer
from tests.rollout.fakes import FakeTrainer, config, run, write_prompts

G = 4


class AsksAnAgent(AsyncRolloutLoop):
    async def setup(self):
        self.client = httpx.AsyncClient(base_url=self.config.agent_url, timeout=PATIENCE_S)
        self.asked = 0

    async def close(self):
        await self.client.aclose()

    async def generate_one(self, prompt, tools, group_id=0):
        self.asked += 1
        task = self.tokenizer.encode(prompt[-1]["content"], add_special_tokens=False)
        request = {
            "task": task,
            "model": self.policy_name,
            "server": self.config.urls[0],
            "seed": 10 * self.asked,
        }
        answer = (await self.client.post("/solve", json=request)).json()
        turns = [
            TurnRecord(
                prompt_ids=turn["prompt_ids"],
                output_ids=turn["output_ids"],
                output_log_probs=turn["logprobs"],
                output_sampler_logprobs=[
                    {int(token): value for token, value in top.items()} for top in turn["top"]
                ],
            )
            for turn in answer["turns"]
        ]
        return Rollout(
            completion=[{"role": "assistant", "content": "solved"}],
            completion_ids=[token for turn in turns for token in turn.output_ids],
            turns=turns,
            tool_call_count=1,
            reward=float(answer["score"]),
        )


@pytest.fixture
def server():
    with FakeServer(FakeState(vocab_size=64, max_model_len=64)) as fake:
        yield fake


async def test_an_external_agents_turns_are_trained(server, tmp_path):
    data_path = write_prompts(tmp_path / "prompts.jsonl", 6)
    server.state.adapters = {"policy-v000000": "/"}
    server.state.versions = {"policy-v000000": 0}
    with AgentServer() as agent:
        rollout = {"loop": f"{__name__}:AsksAnAgent", "loop_args": {"agent_url": agent.url}}
        cfg = config(data_path, server.url, [], rollout=rollout, sync={"backend": "adapter"})
        trainer = await run(server, cfg, FakeTrainer(num_prompts=6, policy="policy-v000000"))
    assert len(trainer.resolved) == 6
    assert trainer.groups
    for group in trainer.groups:
        assert len(group.samples) == G
        for sample in group.samples:
            assert (np.diff(sample.trained.astype(int)) == 1).sum() == 2  # two replies, one sample
            expected = expected_logprobs(sample.input_ids.tolist(), 0, 64)
            trained = sample.trained.astype(bool)
            assert sample.sampler_logprobs[trained] == pytest.approx(expected[trained], abs=1e-5)
            assert sample.policy_version == 0
    metrics = trainer.metrics
    assert metrics["tools/call_frequency"].total == 6 * G
    assert metrics["reward"].weight == 6 * G
    assert {name for name, _ in server.state.requests[1:]} == {"policy-v000000"}
