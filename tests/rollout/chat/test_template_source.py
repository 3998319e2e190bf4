"""Templates of a recipe and of a model's folder."""

import json
from pathlib import Path

import pytest

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.chat.template_source import folder_template, given_template, spellings


def write(folder: Path, **settings: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_the_recipes_is_a_template_or_a_file(tmp_path: Path):
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    assert given_template(str(tmp_path / "t.jinja")) == "{{ messages }}"
    assert given_template("{{ x }}") == "{{ x }}"
    assert given_template(None) is None
    with pytest.raises(DataError, match=r"`no\.jinja` is neither"):
        given_template("no.jinja")


def test_the_folders_is_a_file_or_a_setting_or_the_default_of_several(tmp_path: Path):
    assert folder_template(tmp_path) is None
    assert folder_template(write(tmp_path, chat_template="A")) == "A"
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert folder_template(write(tmp_path, chat_template=several)) == "D"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert folder_template(tmp_path) == "F"


def test_special_tokens_are_texts_or_objects(tmp_path: Path):
    write(tmp_path, bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None, other=1)
    assert spellings(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text("[")
    assert spellings(tmp_path) == {}
