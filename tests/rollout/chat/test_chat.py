"""Rendering a conversation, and the errors of a template that cannot."""

import pytest

from asyncgrpo.config import Config
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.chat.chat import Chat
from tests.rollout.fakes import EOS, TEMPLATE, conversation, tokenizer


def rollout(**fields):
    return Config.model_validate({"model": {"name_or_path": "x"}, "rollout": fields}).rollout


def test_by_hand():
    chat = Chat(tokenizer(), rollout())
    prompt_ids = chat.render([{"role": "system", "content": "w9"}, *conversation(3, 4)])
    assert prompt_ids.tolist() == [62, 9, 60, 3, 4, 61]
    assert prompt_ids.dtype == "int32"


def test_text_leaves_special_tokens_out():
    assert Chat(tokenizer(), rollout()).text([5, 6, EOS]) == "w5 w6"


def test_the_recipes_template_and_its_keywords(tmp_path):
    template = "{% if loud %}w50{% endif %} {{ messages[0].content }}"
    for given in (template, str(tmp_path / "template.jinja")):
        (tmp_path / "template.jinja").write_text(template)
        fields = {"chat_template": given, "chat_template_kwargs": {"loud": True}}
        assert Chat(tokenizer(None), rollout(**fields)).render(conversation(7)).tolist() == [50, 7]


def test_a_tokenizer_without_template_is_refused():
    with pytest.raises(DataError, match=r"has no chat template; set rollout\.chat_template"):
        Chat(tokenizer(None), rollout())


def test_a_template_file_that_is_missing_is_named():
    with pytest.raises(DataError, match=r"`no/such\.jinja` is neither"):
        Chat(tokenizer(), rollout(chat_template="no/such.jinja"))


def test_a_template_that_refuses_the_conversation_says_so():
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match="roles must alternate"):
        Chat(tokenizer(template), rollout()).render(conversation(3))
    with pytest.raises(DataError, match="rendered no token"):
        Chat(tokenizer("{{ '' }}"), rollout()).render([{"role": "user", "content": ""}])


def test_the_rendering_is_the_tokenizers_own():
    made = tokenizer()
    messages = conversation(3, 4, 5)
    expected = made.apply_chat_template(
        messages, chat_template=TEMPLATE, add_generation_prompt=True, return_dict=False
    )
    assert Chat(made, rollout()).render(messages).tolist() == expected


def test_a_prompt_that_ends_with_the_assistant_is_gone_on_with():
    made = tokenizer()
    messages = [*conversation(3), {"role": "assistant", "content": "w5 w6"}]
    prompt_ids = Chat(made, rollout()).render(messages).tolist()
    assert prompt_ids == [60, 3, 61, 5, 6]
    assert prompt_ids == made.apply_chat_template(
        messages, continue_final_message=True, return_dict=False
    )
