"""Names that users of other trainers know."""

import pytest

from asyncgrpo.config.describe import annotation_at
from asyncgrpo.config.other_names import OTHER_NAMES, instead_of, key_of_option
from asyncgrpo.config.sections.tree import Config


def test_every_row_names_a_key_that_exists_or_says_why_there_is_none():
    for row in OTHER_NAMES:
        if row.key is None:
            assert row.note
        else:
            path = row.key.replace("[]", ".0").split(".")
            key = tuple(int(part) if part.isdigit() else part for part in path)
            assert annotation_at(Config, key) is not None, row.key


def test_no_name_has_two_rows():
    names = [name for row in OTHER_NAMES for name in row.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("save_steps", "unknown key; did you mean `checkpoint.save_steps`?"),
        ("seed", "unknown key; did you mean `rollout.seed` or `trainer.seed`?"),
        ("torch_dtype", "unknown key; write `model.dtype`"),
        ("save_strategy", "unknown key; write `checkpoint.save_steps`: a number of steps"),
        ("use_vllm", "not a key: vLLM always generates, in processes of its own"),
        ("frobnicate", None),
    ],
)
def test_a_name_is_answered_with_what_to_write(name: str, told: str | None):
    assert instead_of(name) == told


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--max-steps", "keys of the recipe have no dashes: trainer.max_steps=VALUE"),
        ("--trainer.max_steps", "keys of the recipe have no dashes: trainer.max_steps=VALUE"),
        ("--lr", "keys of the recipe have no dashes: trainer.learning_rate=VALUE"),
        ("--seed", "keys of the recipe have no dashes: rollout.seed=VALUE or trainer.seed=VALUE"),
        ("--use-vllm", "and not a key: vLLM always generates, in processes of its own"),
        ("--fast", "keys of the recipe are written KEY=VALUE, such as trainer.max_steps=20"),
    ],
)
def test_an_option_is_answered_with_the_key(option: str, told: str):
    assert key_of_option(option) == told
