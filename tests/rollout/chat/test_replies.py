"""Replies that people report, read: `replies.jsonl`, with what is decided otherwise."""

# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full width

import json
from pathlib import Path

import pytest

from asyncgrpo.rollout.chat.reply_parsing import BadCall, CallStyle, parse_reply

CASES = Path(__file__).parents[2] / "assets" / "cases" / "replies.jsonl"
STYLES = {
    "hermes": CallStyle.HERMES,
    "qwen_xml": CallStyle.QWEN_XML,
    "llama3": CallStyle.LLAMA3,
}
TYPES = {"text": {"type": "string"}, "n": {"type": "integer"}}
EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edits.",
        "parameters": {"type": "object", "properties": TYPES, "required": []},
    },
}

# The list leaves these to a convention; here is ours.
DECIDED = {
    "x03": (
        [{"name": "edit", "arguments": {"text": "if a ", "b": " then"}}],
        "a parameter that is not closed ends where the next begins: models leave the end out",
    ),
}


def cases():
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def read(text, style, **options):
    calls = parse_reply(text, style, [EDIT], **options).calls
    return [
        "BAD" if isinstance(call, BadCall) else {"name": call.name, "arguments": call.arguments}
        for call in calls
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_reply_of_the_list(case):
    want, _ = DECIDED.get(case["id"], (case["want"], ""))
    assert read(case["text"], STYLES[case["style"]]) == want, case["why"]


def edit(text):
    return [{"name": "edit", "arguments": {"text": text}}]


def hermes(text):
    return f'<tool_call>{{"name": "edit", "arguments": {{"text": "{text}"}}}}</tool_call>'


@pytest.mark.parametrize(
    "text", ["<think> so", "so </think>", "<think>a</think>", "</think><think>"]
)
@pytest.mark.parametrize("before", ["", "I edit. ", "<think>I plan.</think>"])
def test_tags_of_reasoning_in_an_argument_are_text(text, before):
    assert read(before + hermes(text), CallStyle.HERMES) == edit(text)
    xml = f"<tool_call><function=edit><parameter=text>{text}</parameter></function></tool_call>"
    assert read(before + xml, CallStyle.QWEN_XML) == edit(text)
    for call in (
        f'<|python_tag|>{{"name": "edit", "parameters": {{"text": "{text}"}}}}',
        f'<function=edit>{{"text": "{text}"}}</function>',
    ):
        assert read(before + call, CallStyle.LLAMA3) == edit(text)
    alone = f'{{"name": "edit", "parameters": {{"text": "{text}"}}}}'
    assert read(alone, CallStyle.LLAMA3) == edit(text)
    assert read(f"<think>I plan.</think>\n{alone}", CallStyle.LLAMA3) == edit(text)
    assert read(f"I plan.</think>{alone}", CallStyle.LLAMA3, thinking=True) == edit(text)
    deepseek = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>edit\n```json\n"
        f'{{"text": "{text}"}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    assert read(before + deepseek, CallStyle.DEEPSEEK) == edit(text)


def test_calls_between_two_blocks_of_reasoning_are_made_and_those_inside_are_not():
    reply = f"<think>{hermes('a')}</think>{hermes('b')}<think>{hermes('c')}</think>{hermes('d')}"
    assert read(reply, CallStyle.HERMES) == [*edit("b"), *edit("d")]
    content = parse_reply(reply, CallStyle.HERMES, [EDIT]).content
    assert content == f"<think>{hermes('a')}</think><think>{hermes('c')}</think>"


def test_a_block_that_the_prompt_opened_ends_at_its_first_end():
    reply = f"{hermes('a')}</think>{hermes('b </think>')}"
    assert read(reply, CallStyle.HERMES, thinking=True) == edit("b </think>")
    assert read(hermes("a"), CallStyle.HERMES, thinking=True) == []


def test_a_block_that_does_not_end_holds_all_that_follows():
    assert read(f"{hermes('a')}<think>{hermes('b')}", CallStyle.HERMES) == edit("a")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{"name": "edit"}', [{"name": "edit", "arguments": {}}]),
        ('{"name": "Alice"}', []),
        ('{"answer": 3}', []),
        ("{3}", []),
        ('{"name": "edit", "parameters": {"n": 1}', ["BAD"]),
        (
            '{"name": "edit", "parameters": {}} {"name": ',
            [{"name": "edit", "arguments": {}}, "BAD"],
        ),
    ],
)
def test_json_of_a_llama_is_a_call_or_an_answer(text, want):
    assert read(text, CallStyle.LLAMA3) == want
