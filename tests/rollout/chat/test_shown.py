"""Messages that a template leaves out."""

import pytest

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.chat.shown import ShownMessages

USER = {"role": "user", "content": "y"}


class Template:
    """Shows the roles it knows, changed as templates change texts; counts its renderings."""

    def __init__(self, *roles: str) -> None:
        self._roles = roles
        self.count = 0

    def __call__(self, messages, schemas):
        self.count += 1
        shown = [m for m in messages if m["role"] in self._roles or (schemas and m is messages[0])]
        return "You are helpful. " + " ".join(f'"{m["content"].strip()}"' for m in shown)


def test_a_role_that_vanishes_is_named_though_its_text_is_found_by_chance():
    shown = ShownMessages(Template("user"))
    with pytest.raises(DataError, match="message 0 of role `usr` is not in what the chat template"):
        shown.check([{"role": "usr", "content": "y"}])
    with pytest.raises(DataError, match="message 1 of role `critic`"):
        shown.check([USER, {"role": "critic", "content": "no"}, USER])


def test_a_shape_is_rendered_once_whatever_its_words():
    template = Template("user", "system")
    shown = ShownMessages(template)
    for text in ("a", " b\n", "</think>"):
        shown.check([{"role": "system", "content": text}, {"role": "user", "content": text}])
    assert template.count == 1
    shown.check([USER])
    assert template.count == 2


def test_with_tools_a_shape_is_looked_at_again():
    shown = ShownMessages(Template("user"))
    shown.check([{"role": "odd", "content": "x"}, USER], [{"function": {"name": "f"}}])
    with pytest.raises(DataError, match="`odd`"):
        shown.check([{"role": "odd", "content": "x"}, USER])


def test_empty_text_and_what_stands_beside_calls_need_not_be_shown():
    calls = {"role": "assistant", "content": "let me see", "tool_calls": [{}]}
    ShownMessages(Template("user")).check([{"role": "system", "content": ""}, USER, calls])


def test_the_eleventh_message_is_not_taken_for_the_first():
    shown = ShownMessages(Template("user"))
    messages = [{"role": "lost", "content": "x"}, *[USER] * 11]
    with pytest.raises(DataError, match="message 0 of role `lost`"):
        shown.check([messages[1], messages[0], *messages[2:]][1:])
