"""Texts that spell a control token are told once."""

import logging

from asyncgrpo.config import Config
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.chat.control_tokens import ControlTokenNotice
from tests.rollout.fakes import EOS, tokenizer

CONFIG = Config.model_validate({"model": {"name_or_path": "x"}})
USER = {"role": "user", "content": "w3 <eos> w4"}


def test_the_first_message_that_spells_one_is_told_once(caplog):
    notice = ControlTokenNotice(tokenizer())
    with caplog.at_level(logging.WARNING):
        notice.look([{"role": "user", "content": "eos"}, {"role": "tool", "content": ["<eos>"]}])
        notice.look([USER])
    (told,) = caplog.messages
    assert told.startswith("a message of role `tool` has the text `<eos>`")


def test_a_prompt_keeps_it_as_the_token_a_server_would_make_of_it(caplog):
    with caplog.at_level(logging.WARNING):
        prompt_ids = Chat(tokenizer(), CONFIG.rollout).render([USER])
    assert prompt_ids.tolist() == [60, 3, EOS, 4, 61]
    assert "`<eos>`" in caplog.text
