"""Values of a later version are refused by name; defaults are not."""

from pathlib import Path

import pytest

from asyncgrpo.config import Config
from asyncgrpo.config.problems import dotted
from asyncgrpo.config.rules.not_yet import NOT_YET, refusals
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import load

REFUSED = {
    "model.torch_compile": ["true"],
    "data.eval": ["{path: org/held-out}"],
    "rollout.on_stale": ["retry"],
    "server.urls": ["['http://a:1', 'http://b:1']"],
    "server.replicas": ["2"],
    "server.data_parallel_size": ["2"],
    "router.enabled": ["true"],
    "router.policy": ["round_robin"],
    "router.imbalance_limit": ["4"],
    "router.load_weight_tokens": ["10"],
    "router.block_size": ["16"],
    "router.host": ["0.0.0.0"],
    "router.port": ["9000"],
    "router.api_key_env": ["KEY"],
    "router.upstream_token_env": ["KEY"],
    "trainer.nnodes": ["2"],
    "trainer.rdzv_endpoint": ["host:29500"],
    "sync.backend": ["nccl"],
    "checkpoint.push_to_hub": ["true"],
    "checkpoint.hub_model_id": ["org/model"],
    "checkpoint.hub_private_repo": ["true"],
    "tracking.report_to": ["wandb", "[tensorboard, trackio]"],
    "tracking.log_completions": ["true"],
    "tracking.num_completions_to_print": ["3"],
    "tracking.project": ["x"],
    "tracking.run_name": ["x"],
    "eval.every_steps": ["10"],
    "eval.num_generations": ["4"],
    "eval.temperature": ["0.5"],
    "eval.max_prompts": ["10"],
}


def test_every_such_key_has_a_case():
    assert {dotted(row.key) for row in NOT_YET} == set(REFUSED)


@pytest.mark.parametrize("key", REFUSED)
def test_it_is_refused_by_name(tmp_path: Path, key: str):
    for value in REFUSED[key]:
        with pytest.raises(ConfigError) as error:
            load(tmp_path, f"{key}={value}")
        start = f"override '{key}={value}'  {key}: not yet available: {key} = "
        assert any(line.startswith(start) for line in str(error.value).splitlines())


def test_defaults_are_available():
    config = Config.model_validate({"model": {"name_or_path": "x"}})
    assert list(refusals(config)) == []


def test_tensorboard_is_available(tmp_path: Path):
    config = load(tmp_path, "tracking.report_to=tensorboard").config
    assert config.tracking.report_to == ("tensorboard",)
