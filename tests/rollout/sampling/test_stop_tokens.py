"""The tokens that end a reply, of models whose files say more than the tokenizer."""

import json
import logging

import pytest

from asyncgrpo.rollout.sampling.stop_tokens import stop_tokens


def model(folder, **generation_config):
    (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return str(folder)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"eos_token_id": [128001, 128008, 128009]}, {2, 128001, 128008, 128009}),
        ({"eos_token_id": 7}, {2, 7}),
        ({"eos_token_id": None}, {2}),
        ({}, {2}),
        ({"eos_token_id": "</s>"}, {2}),
    ],
)
def test_the_generation_configs_tokens_join_the_tokenizers(tmp_path, given, found):
    assert stop_tokens(2, model(tmp_path, **given), None) == found


def test_a_tokenizer_without_eos_leaves_those_of_the_file(tmp_path):
    assert stop_tokens(None, model(tmp_path, eos_token_id=[3]), None) == {3}


def test_a_model_without_the_file_has_the_tokenizers(tmp_path):
    assert stop_tokens(2, str(tmp_path), None) == {2}
    assert stop_tokens(2, "nobody/has-this", None) == {2}


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_cannot_be_read_is_said(tmp_path, caplog, text):
    (tmp_path / "generation_config.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert stop_tokens(2, str(tmp_path), None) == {2}
    assert "generation_config.json: its eos_token_id is not read" in caplog.text
