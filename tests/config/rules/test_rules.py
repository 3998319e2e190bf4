"""Each rule across keys: an override that breaks it, the blamed key, the remedy."""

from pathlib import Path

import pytest

from asyncgrpo.config.problems import dotted
from asyncgrpo.config.rules.rules import RULES
from asyncgrpo.config.rules.rules_training import OWN_KEYWORDS
from asyncgrpo.errors import ConfigError
from tests.config.recipe_files import load
from tests.config.rules.rule_cases import CASES


@pytest.mark.parametrize(("overrides", "key", "message", "mend"), CASES)
def test_a_broken_rule_blames_a_key_and_says_the_way_out(
    tmp_path: Path, overrides: list[str], key: str, message: str, mend: list[str]
):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, *overrides)
    lines = [line for line in str(error.value).splitlines() if f"  {key}: " in line]
    assert any(message in line for line in lines), str(error.value)
    load(tmp_path, *overrides, *mend)


def test_every_rule_has_a_case():
    blamed = {dotted(rule.keys[0]) for rule in RULES}
    assert blamed == {key for _, key, _, _ in CASES}
    assert len(CASES) >= len(RULES)


def test_more_sampler_logprobs_than_vllm_s_default_need_no_flag(tmp_path: Path):
    load(tmp_path, "loss.num_sampler_logprobs=64")  # the launcher asks the server for as many


@pytest.mark.parametrize("keyword", OWN_KEYWORDS)
def test_init_kwargs_cannot_override_what_has_a_key(tmp_path: Path, keyword: str):
    with pytest.raises(ConfigError, match=f"`{keyword}` is not taken from here; "):
        load(tmp_path, f"model.init_kwargs={{{keyword}: null}}")


def test_no_checkpoints_is_a_flag(tmp_path: Path):
    load(tmp_path, "checkpoint.save_steps=null", no_checkpoints=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_needs_no_key(tmp_path: Path, host: str):
    load(tmp_path, f"server.host='{host}'")


@pytest.mark.parametrize(
    "host", ["::", "10.0.0.5", "node7", "localhost.example.org", "127.evil.org"]
)
def test_anything_else_does(tmp_path: Path, host: str):
    with pytest.raises(ConfigError, match=r"server\.host"):
        load(tmp_path, f"server.host='{host}'")
