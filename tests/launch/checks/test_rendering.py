"""A prompt that the template does not show whole: `validate` and the worker say the same."""

import json
from pathlib import Path

import pytest

from asyncgrpo.config import Config
from asyncgrpo.errors import DataError
from asyncgrpo.launch.checks import prompts_file, rendering
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.inputs import Inputs
from tests.rollout.fakes import tokenizer

FILES = Path(__file__).parents[2] / "assets" / "cases" / "files"
# As many templates are: a role that is none of these vanishes.
BY_ROLE = (
    "{% for m in messages %}{% if m.role == 'user' %}w60 {{ m.content | trim }} "
    "{% elif m.role in ('system', 'assistant', 'tool') %}w61 {{ m.content | trim }} {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}w61{% endif %}"
)
ALTERNATES = "{{ raise_exception('roles must alternate') if messages | length > 1 }}{{ messages }}"


def config(file: Path, template: str | None = BY_ROLE, model: str = "fake", **data: str) -> Config:
    return Config.model_validate(
        {
            "model": {"name_or_path": model},
            "data": {"path": str(file)} | data,
            "rollout": {"chat_template": template, "rewards": ["asyncgrpo.rewards:length_reward"]},
            "server": {"max_model_len": 64},
        }
    )


def agreed(recipe: Config) -> str | None:
    """The refusal of both; None where both take the file."""
    told = [*rendering.problems(recipe, prompts_file.look(recipe.data).first)]
    refusals: list[str] = []
    try:
        Inputs(recipe, tokenizer(), load_prompts(recipe.data))
    except DataError as error:
        refusals = [f"data.path `{recipe.data.path}`: {error}"]
    assert told == refusals
    return told[0] if told else None


@pytest.mark.parametrize(
    "name", ["30-parts-text.jsonl", "08-msg-keys-bom.jsonl", "06-ragged.jsonl"]
)
def test_what_is_shown_whole_is_taken(name: str):
    assert agreed(config(FILES / name)) is None


def test_a_role_that_the_template_does_not_know_is_refused():
    refusal = agreed(config(FILES / "36-unknown-role.jsonl"))
    assert "row 0: message 0 of role `usr` is not in what the chat template renders" in str(refusal)


def test_a_template_that_refuses_a_row_is_told_with_the_row(tmp_path: Path):
    user = {"role": "user", "content": "w3"}
    rows = [{"prompt": [user]}, {"prompt": [user, user]}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    refusal = agreed(config(tmp_path / "rows.jsonl", ALTERNATES))
    assert "row 1: the chat template failed: TemplateError: roles must alternate" in str(refusal)


def test_the_template_is_the_folders_where_the_recipe_has_none(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token + messages[-1].content }}")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    rows = [{"q": "w3"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    keys = {"prompt_template": "{q}", "system_prompt": "Be brief."}
    recipe = config(tmp_path / "rows.jsonl", None, str(tmp_path), **keys)
    (problem,) = rendering.problems(recipe, prompts_file.look(recipe.data).first)
    assert "row 0: message 0 of role `system` is not in what the chat template renders" in problem


def test_a_model_on_the_hub_is_left_to_the_worker():
    recipe = config(FILES / "36-unknown-role.jsonl", None, "org/model")
    assert [*rendering.problems(recipe, prompts_file.look(recipe.data).first)] == []
