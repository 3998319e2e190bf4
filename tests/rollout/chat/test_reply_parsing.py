"""Replies of each family: calls by hand, bad calls, then laws for every text."""

# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full width

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.rollout.chat.reply_parsing import BadCall, CallStyle, ToolCall, parse_reply, style_of

HERMES, QWEN_XML = CallStyle.HERMES, CallStyle.QWEN_XML
LLAMA3, DEEPSEEK = CallStyle.LLAMA3, CallStyle.DEEPSEEK
ADD = ToolCall("add", {"a": 1, "b": 2})
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def deepseek(*calls):
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>"


XML_ADD = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
    "<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>"
)
HERMES_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
V3_ADD = f'{BEGIN}function{SEP}add\n```json\n{{"a": 1, "b": 2}}\n```{END}'


@pytest.mark.parametrize(
    ("style", "text", "content"),
    [
        (HERMES, HERMES_ADD, ""),
        (HERMES, f"Let me see.\n{HERMES_ADD}", "Let me see."),
        (HERMES, '<tool_call>{"arguments": "{\\"a\\": 1, \\"b\\": 2}", "name": "add"}', ""),
        (QWEN_XML, XML_ADD, ""),
        (QWEN_XML, f"Let me see.\n\n{XML_ADD}", "Let me see."),
        (QWEN_XML, XML_ADD.removesuffix("</function>\n</tool_call>"), ""),
        (LLAMA3, '{"name": "add", "parameters": {"a": 1, "b": 2}}', ""),
        (LLAMA3, '\n {"name": "add", "arguments": {"a": 1, "b": 2}} ', ""),
        (LLAMA3, '{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}', ""),
        (LLAMA3, 'Adding.<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}', "Adding."),
        (LLAMA3, '<function=add>{"a": 1, "b": 2}</function>', ""),
        (DEEPSEEK, deepseek(V3_ADD), ""),
        (DEEPSEEK, f"Adding.{deepseek(V3_ADD)}", "Adding."),
        (DEEPSEEK, deepseek(f'{BEGIN}add{SEP}{{"a": 1, "b": 2}}{END}'), ""),
        (DEEPSEEK, deepseek(V3_ADD).replace("▁", " ").replace("\n", ""), ""),
    ],
)
def test_a_call_by_hand(style, text, content):
    reply = parse_reply(text, style)
    assert reply.calls == (ADD,)
    assert (reply.text, reply.content) == (text, content)
    assert reply.message == {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        ],
    }


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, HERMES_ADD + "\n" + HERMES_ADD.replace("1", "3")),
        (QWEN_XML, XML_ADD + "\n" + XML_ADD.replace("1", "3")),
        (
            LLAMA3,
            "; ".join(f'{{"name": "add", "parameters": {{"a": {a}, "b": 2}}}}' for a in (1, 3)),
        ),
        (DEEPSEEK, deepseek(V3_ADD, V3_ADD.replace("1", "3"))),
    ],
)
def test_several_calls_keep_their_order(style, text):
    assert parse_reply(text, style).calls == (ADD, ToolCall("add", {"a": 3, "b": 2}))


@pytest.mark.parametrize("style", list(CallStyle))
@pytest.mark.parametrize("text", ["The sum is 3.", "", '[1, {"name": "add"}]', '{"answer": 3}'])
def test_a_reply_without_a_call_is_its_content(style, text):
    reply = parse_reply(text, style)
    assert (reply.content, reply.calls) == (text, ())
    assert reply.message == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("style", "text", "problem"),
    [
        (HERMES, "<tool_call>add(1, 2)</tool_call>", "not valid JSON"),
        (HERMES, '<tool_call>{"name": "add", "argum', "not valid JSON"),
        (HERMES, "<tool_call>[1, 2]</tool_call>", "no JSON object"),
        (HERMES, '<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        (HERMES, '<tool_call>{"name": 3}</tool_call>', 'no "name"'),
        (HERMES, '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "no JSON object"),
        (HERMES, '<tool_call>{"name": "add", "arguments": "1"}</tool_call>', "no JSON object"),
        (HERMES, "<tool_call>" + "[" * 100_000 + "</tool_call>", "not valid JSON"),
        (QWEN_XML, "<tool_call>add(1, 2)</tool_call>", "no <function=name>"),
        (QWEN_XML, "<tool_call><function=></function></tool_call>", "no <function=name>"),
        (LLAMA3, '{"name": "add", "parameters": {"a": 1', "not valid JSON"),
        (LLAMA3, '<|python_tag|>search.call(query="x")', "not valid JSON"),
        (LLAMA3, "<|python_tag|>", "empty"),
        (LLAMA3, "<function=add>1, 2</function>", "not valid JSON"),
        (DEEPSEEK, deepseek(f"{BEGIN}add(1, 2){END}"), "no <｜tool▁sep｜>"),
        (DEEPSEEK, deepseek(f"{BEGIN}function{SEP}add\n```json\n(1, 2)\n```{END}"), "not valid"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(style, text, problem):
    (call,) = parse_reply(text, style).calls
    assert isinstance(call, BadCall)
    assert problem in call.problem
    assert "tool_calls" not in parse_reply(text, style).message


@pytest.mark.parametrize("style", list(CallStyle))
def test_what_reasoning_mentions_is_not_called_and_reasoning_is_kept(style):
    text = f"<think>\nI could write {HERMES_ADD} or {deepseek(V3_ADD)}\n</think>\n\nThree."
    assert parse_reply(text, style) == parse_reply(text, style, thinking=True)
    assert parse_reply(text, style).calls == ()
    assert parse_reply(text, style).content == text
    unfinished = text.partition("</think>")[0]
    assert parse_reply(unfinished, style).calls == ()
    assert parse_reply(unfinished.removeprefix("<think>"), style, thinking=True).calls == ()


def test_a_call_after_reasoning_is_made():
    reply = parse_reply(f"<think>\nAdd them.\n</think>\n\n{HERMES_ADD}", HERMES)
    assert reply.calls == (ADD,)
    assert reply.content == "<think>\nAdd them.\n</think>"


def test_the_style_is_seen_in_the_template():
    assert style_of("... <tool_call></tool_call> XML tags ...") is HERMES
    assert style_of("'<|start_header_id|>' + message.role") is LLAMA3
    assert style_of("'<｜User｜>' + message.content") is DEEPSEEK
    assert style_of("<|im_start|>") is None
    assert style_of("<tool_call>\n<function=example>\n<parameter=x>") is QWEN_XML
    assert style_of("<tool_call>name\n<arg_key>k</arg_key>") is None  # of another family


def test_arguments_without_quotes_are_what_the_schema_says():
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "all": {"type": "array"},
    }
    schema = {"function": {"name": "f", "parameters": {"properties": properties}}}
    written = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in {"text": "12", "count": "12", "all": "[1, 2]", "other": "x y"}.items()
    )
    text = f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"
    (call,) = parse_reply(text, QWEN_XML, [schema]).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"text": "12", "count": 12, "all": [1, 2], "other": "x y"}
    several = "<tool_call><function=f><parameter=text>\na\nb\n</parameter></function></tool_call>"
    (call,) = parse_reply(several, QWEN_XML, [schema]).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"text": "a\nb"}


names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="<｜`")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=3), inner),
    max_leaves=5,
)
calls = st.lists(
    st.builds(ToolCall, names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3
)


def written(style: CallStyle, call: ToolCall) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    match style:
        case CallStyle.HERMES:
            return f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>'
        case CallStyle.QWEN_XML:
            parameters = "".join(
                f"<parameter={key}>\n{json.dumps(value)}\n</parameter>\n"
                for key, value in call.arguments.items()
            )
            return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"
        case CallStyle.LLAMA3:
            return f'{{"name": "{call.name}", "parameters": {arguments}}}'
        case CallStyle.DEEPSEEK:
            return f"{BEGIN}function{SEP}{call.name}\n```json\n{arguments}\n```{END}"


@given(style=st.sampled_from(CallStyle), made=calls)
def test_what_a_family_writes_is_read_back(style, made):
    texts = [written(style, call) for call in made]
    text = {
        CallStyle.HERMES: "\n".join(texts),
        CallStyle.QWEN_XML: "\n".join(texts),
        CallStyle.LLAMA3: "; ".join(texts),
        CallStyle.DEEPSEEK: deepseek(*texts),
    }[style]
    assert parse_reply(text, style).calls == tuple(made)


pieces = st.sampled_from(
    [
        *("f>", "<parameter=", "a>", "</parameter>", "</function>"),
        *("<tool_call>", "</tool_call>", "{", "}", '{"name": ', '"add"', "<|python_tag|>"),
        *(
            "<think>",
            "</think>",
            "<｜tool▁calls▁begin｜>",
            BEGIN,
            SEP,
            END,
            "function",
            "<function=",
        ),
    ]
)


@given(
    style=st.sampled_from(CallStyle),
    text=st.lists(pieces | st.text(max_size=5), max_size=12).map("".join),
    thinking=st.booleans(),
)
def test_no_text_breaks_the_parser_and_none_is_lost_without_a_call(style, text, thinking):
    reply = parse_reply(text, style, thinking=thinking)
    assert reply.text == text
    if not reply.calls:
        assert reply.content == text
