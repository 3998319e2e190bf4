"""Types in words, as errors and the reference say them."""

import pytest

from asyncgrpo.config import Config
from asyncgrpo.config.describe import annotation_at, choices, describe


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rollout.num_generations", "a whole number >= 2"),
        ("rollout.failure_budget", "a number >= 0 and <= 1"),
        ("rollout.stop", "a list, each text"),
        ("rollout.min_p", "a number >= 0 and <= 1, or null"),
        ("server.port", "auto, or a whole number >= 1 and <= 65535"),
        ("server.devices", "auto, or a list, each a whole number >= 0"),
        ("server.env", "a mapping of names, each text"),
        ("server.extra_args", "a mapping"),
        ("sync.backend", "one of auto, adapter, folder, nccl"),
        ("trainer.bf16", "true or false, or null"),
        ("server.api_key_env", "text matching ^[A-Za-z_][A-Za-z0-9_]*$, or null"),
        ("run", "a mapping with name, dir, grace_s"),
        ("model.peft.rank_pattern", "a mapping of names, each a whole number > 0"),
        ("data.eval.split", "text"),
    ],
)
def test_a_type_in_words(key: str, words: str):
    assert describe(annotation_at(Config, tuple(key.split(".")))) == words


def test_keys_inside_lists_and_mappings():
    assert describe(annotation_at(Config, ("rollout", "rewards", 3, "weight"))) == "a number"
    assert describe(annotation_at(Config, ("server", "env", "ANY"))) == "text"
    assert annotation_at(Config, ("rollout", "nothing")) is None


def test_choices_are_the_words_alone():
    assert choices(annotation_at(Config, ("server", "dtype"))) == (
        "auto",
        "float32",
        "bfloat16",
        "float16",
    )
