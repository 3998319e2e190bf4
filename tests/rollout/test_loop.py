"""A user's loop: its configuration, its limits."""

import subprocess
import sys

import pytest

import asyncgrpo
from asyncgrpo.config import Config
from asyncgrpo.errors import ConfigError, HookError
from asyncgrpo.rollout.loop import AsyncRolloutLoop, LoopConfig, loop_class


def config(**rollout):
    return Config.model_validate({"model": {"name_or_path": "x"}, "rollout": rollout})


def test_the_public_names_load_on_first_use():
    assert asyncgrpo.AsyncRolloutLoop is AsyncRolloutLoop
    assert asyncgrpo.Rollout(completion=[], completion_ids=[], turns=[]).reward is None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = asyncgrpo.nothing
    code = "import sys, asyncgrpo; assert 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_configuration_has_leaves_sections_and_the_loops_own_arguments():
    cfg = LoopConfig(config(temperature=0.7, seed=5, loop_args={"pass_rate_cap": 0.9}))
    assert cfg.temperature == cfg.rollout.temperature == 0.7
    assert cfg.pass_rate_cap == 0.9
    assert cfg.learning_rate == cfg.trainer.learning_rate
    assert cfg.seed == 5  # trainer has a seed too; rollout's wins
    assert cfg.num_sampler_logprobs == 8


@pytest.mark.parametrize("name", ["temperature", "rollout", "trainer"])
def test_an_argument_that_hides_a_key_is_refused(name):
    with pytest.raises(ConfigError, match=f"rollout.loop_args.{name}"):
        LoopConfig(config(loop_args={name: 1}))


def test_the_loop_is_a_subclass():
    assert loop_class(None) is AsyncRolloutLoop
    found = loop_class("tests.rollout.user_hooks:CurriculumRolloutLoop")
    assert issubclass(found, AsyncRolloutLoop)
    for path in ("tests.rollout.user_hooks:always_one", "collections:OrderedDict"):
        with pytest.raises(HookError, match=r"a subclass of asyncgrpo\.AsyncRolloutLoop"):
            loop_class(path)
    with pytest.raises(HookError, match=r"`AsyncFilter\.filter_prompt` is `async def`"):
        loop_class("tests.rollout.user_hooks:AsyncFilter")
