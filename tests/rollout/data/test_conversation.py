"""Cells of a prompt column: text parts, images, calls without an answer."""

import pytest

from asyncgrpo.rollout.data.conversation import RowError, check_no_images, conversation

CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


def content_of(content: object) -> str:
    (message,) = conversation([{"role": "user", "content": content}], 0, "prompt")
    return message["content"]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"type": "text", "text": "What is 1+1?"}], "What is 1+1?"),
        ([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}], "A\nB"),
        ([{"text": "no type"}], "no type"),
        (["plain", {"type": "input_text", "text": "x", "image": None}], "plain\nx"),
    ],
)
def test_text_parts_are_joined(parts: list, text: str):
    assert content_of(parts) == text


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"type": "image"}, {"type": "text", "text": "?"}], "has a part of type `image`"),
        ([{"type": "image_url", "image_url": {"url": "u"}}], "has a part of type `image_url`"),
        ([{"type": "input_audio", "input_audio": {}}], "has a part of type `input_audio`"),
        ([{"type": "text", "text": None}], "has the part {'type': 'text', 'text': None}"),
        ([3], "has the part 3"),
        ([], "has an empty list as its content"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_row_and_role(parts: list, expected: str):
    with pytest.raises(RowError) as refused:
        conversation([{"role": "user", "content": parts}], 7, "chat")
    assert str(refused.value).startswith("row 7: column `chat`: message 0 of role `user`")
    assert expected in str(refused.value)


def test_calls_that_no_message_answers_are_refused():
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    user = {"role": "user", "content": "?"}
    with pytest.raises(RowError, match="its last message calls tools, and no message answers"):
        conversation([user, calls], 0, "prompt")
    answered = conversation([user, calls, {"role": "tool", "content": "3"}], 0, "prompt")
    assert answered[1]["content"] == ""


@pytest.mark.parametrize("name", ["image", "images"])
def test_a_column_of_images_is_refused_by_name(name: str):
    with pytest.raises(RowError, match=rf"row 2: column `{name}` holds .* images are not trained"):
        check_no_images({name: [{"bytes": b"png"}], "prompt": []}, 2)
    for harmless in (None, [], "a text", 3):
        check_no_images({name: harmless}, 2)
