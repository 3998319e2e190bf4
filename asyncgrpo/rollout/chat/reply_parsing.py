"""A reply's text becomes content and calls, by the style of the model's family.

    HERMES     Qwen2.5, Qwen3, Hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    QWEN_XML   Qwen3.5, Qwen3-Coder     <tool_call><function=name><parameter=key>value</parameter>
                                        </function></tool_call>
    LLAMA3     Llama 3.x                {"name": ..., "parameters": {...}}, alone or after
                                        <|python_tag|>; or <function=name>{...}</function>
    DEEPSEEK   DeepSeek-V3, R1          <｜tool▁call▁begin｜>function<｜tool▁sep｜>name
                                        and a fence of JSON, or name<｜tool▁sep｜>{...}

Reasoning (`<think> ... </think>`) stays in the content; calls inside it are not made. It begins
where the prompt or the reply opened a block outside a call: the tags in an argument are text.
A call that cannot be read is a `BadCall`: the model is told the problem.
"""

# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full width

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.group import Message

THINK, END_THINK = "<think>", "</think>"
SHOWN_CHARACTERS = 200

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_XML_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)(?:</function>|\Z)", re.DOTALL)
_XML_PARAMETER = re.compile(
    r"<parameter=([^>]*)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_OTHER_STYLES = ("<function=", "<arg_key>")  # in <tool_call> too, but no JSON
_PYTHON_TAG = "<|python_tag|>"
_LLAMA_CALL_BEGINS = re.compile(r'\{\s*"(?:name|type)"\s*:')
_LLAMA_SEPARATORS = " \t\r\n;,"
# Some tokenizers decode the bar between the words of a token as a space.
_DEEPSEEK_CALLS = re.compile(
    r"<｜tool[▁ ]calls[▁ ]begin｜>(.*?)(?:<｜tool[▁ ]calls[▁ ]end｜>|\Z)", re.DOTALL
)
_DEEPSEEK_CALL = re.compile(
    r"<｜tool[▁ ]call[▁ ]begin｜>(.*?)(?:<｜tool[▁ ]call[▁ ]end｜>|\Z)", re.DOTALL
)
_DEEPSEEK_SEPARATOR = re.compile(r"<｜tool[▁ ]sep｜>")
_DEEPSEEK_NAME = re.compile(r"\s*([^\s`{]*)")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*(?:```\s*)?\Z", re.DOTALL)
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


class CallStyle(Enum):
    """The way a family of models writes its calls."""

    HERMES = "<tool_call> JSON"
    QWEN_XML = "<tool_call> XML"
    LLAMA3 = "Llama 3 JSON"
    DEEPSEEK = "DeepSeek tool calls"


# What comes first decides: a block opened inside a call is text of the call.
_THINK_OR_CALL = {
    CallStyle.HERMES: re.compile(f"{_THINKING.pattern}|{_HERMES.pattern}", re.DOTALL),
    CallStyle.QWEN_XML: re.compile(f"{_THINKING.pattern}|{_HERMES.pattern}", re.DOTALL),
    CallStyle.LLAMA3: re.compile(
        rf"{_THINKING.pattern}|{re.escape(_PYTHON_TAG)}.*|{_XML_FUNCTION.pattern}"
        r"|(?:\A|(?<=</think>))\s*\{.*",
        re.DOTALL,
    ),
    CallStyle.DEEPSEEK: re.compile(f"{_THINKING.pattern}|{_DEEPSEEK_CALLS.pattern}", re.DOTALL),
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be made, if there is such a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadCall:
    """An attempt at a call that cannot be read."""

    text: str
    problem: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of the policy."""

    text: str  # all of it, without the token that ends it
    content: str  # without the calls; reasoning included
    calls: tuple[ToolCall | BadCall, ...] = ()

    @property
    def message(self) -> Message:
        """The reply as a message of the conversation."""
        message: Message = {"role": "assistant", "content": self.content}
        made = [call for call in self.calls if isinstance(call, ToolCall)]
        if made:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in made
            ]
        return message


def style_of(template: str) -> CallStyle | None:
    """The call style that a chat template shows; None where it shows none."""
    if "<｜tool▁sep｜>" in template or "<｜User｜>" in template:
        return CallStyle.DEEPSEEK
    if "<tool_call>" in template and "<function=" in template and "<parameter=" in template:
        return CallStyle.QWEN_XML
    if "<tool_call>" in template and not any(mark in template for mark in _OTHER_STYLES):
        return CallStyle.HERMES
    if "<|start_header_id|>" in template:
        return CallStyle.LLAMA3
    return None


def parse_reply(
    text: str, style: CallStyle, schemas: Sequence[ToolSchema] = (), *, thinking: bool = False
) -> Reply:
    """Reads a reply; with `thinking` its prompt has opened a `<think>` block.

    In QWEN_XML the style does not tell text from numbers: the types in `schemas` do.
    """
    kept: list[str] = []
    calls: list[ToolCall | BadCall] = []
    for part, is_reasoning in _parts(text, style, thinking=thinking):
        rest, made = (part, []) if is_reasoning else _read_calls(part, style, schemas)
        kept.append(rest)
        calls += made
    return Reply(text, "".join(kept).strip(), tuple(calls)) if calls else Reply(text, text)


def _parts(text: str, style: CallStyle, *, thinking: bool) -> Iterator[tuple[str, bool]]:
    """The reply in pieces; True for one that is a block of reasoning."""
    start = 0
    if thinking:
        before, end, _ = text.partition(END_THINK)
        start = len(before + end)
        yield text[:start], True
    begun = start
    while found := _THINK_OR_CALL[style].search(text, start):
        start = found.end()
        if found[0].startswith(THINK):
            yield text[begun : found.start()], False
            yield found[0], True
            begun = start
    yield text[begun:], False


def _read_calls(
    body: str, style: CallStyle, schemas: Sequence[ToolSchema]
) -> tuple[str, list[ToolCall | BadCall]]:
    """The text without its calls, and the calls."""
    match style:
        case CallStyle.HERMES:
            return _hermes(body)
        case CallStyle.QWEN_XML:
            return _qwen_xml(body, schemas)
        case CallStyle.LLAMA3:
            return _llama3(body, {schema["function"]["name"] for schema in schemas})
        case CallStyle.DEEPSEEK:
            return _deepseek(body)


def _hermes(body: str) -> tuple[str, list[ToolCall | BadCall]]:
    calls = [_json_call(match[1]) for match in _HERMES.finditer(body)]
    return _HERMES.sub("", body), calls


def _qwen_xml(body: str, schemas: Sequence[ToolSchema]) -> tuple[str, list[ToolCall | BadCall]]:
    calls = [_xml_call(match[1], schemas) for match in _HERMES.finditer(body)]
    return _HERMES.sub("", body), calls


def _xml_call(text: str, schemas: Sequence[ToolSchema]) -> ToolCall | BadCall:
    function = _XML_FUNCTION.search(text)
    if function is None or not function[1].strip():
        return BadCall(text, "it has no <function=name>")
    name = function[1].strip()
    described = [s["function"] for s in schemas if s["function"]["name"] == name]
    types = described[0]["parameters"]["properties"] if described else {}
    arguments = {
        match[1].strip(): _as_typed(match[2], types.get(match[1].strip(), {}).get("type"))
        for match in _XML_PARAMETER.finditer(function[2])
    }
    return ToolCall(name, arguments)


def _as_typed(text: str, json_type: object) -> object:
    """An argument that was written without quotes."""
    if json_type == "string":
        return text
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text  # the tool reports the problem


def _llama3(body: str, tools: Collection[str]) -> tuple[str, list[ToolCall | BadCall]]:
    named = [_call(m[1], m[2]) for m in _XML_FUNCTION.finditer(body)]
    if named:
        return _XML_FUNCTION.sub("", body), named
    before, tag, after = body.partition(_PYTHON_TAG)
    if tag:
        return before, list(_json_calls(after))
    return ("", list(_json_calls(body))) if _is_llama_call(body.strip(), tools) else (body, [])


def _is_llama_call(text: str, tools: Collection[str]) -> bool:
    """True for JSON that calls, or that tried to; an answer in JSON is none."""
    if not text.startswith("{"):
        return False
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return _LLAMA_CALL_BEGINS.match(text) is not None
    has_arguments = not {"parameters", "arguments"}.isdisjoint(value)
    return "name" in value and (has_arguments or value["name"] in tools)


def _deepseek(body: str) -> tuple[str, list[ToolCall | BadCall]]:
    calls: list[ToolCall | BadCall] = []
    for block in _DEEPSEEK_CALLS.finditer(body):
        calls += [_deepseek_call(match[1]) for match in _DEEPSEEK_CALL.finditer(block[1])]
    return _DEEPSEEK_CALLS.sub("", body), calls


def _deepseek_call(text: str) -> ToolCall | BadCall:
    left, *rest = _DEEPSEEK_SEPARATOR.split(text, maxsplit=1)
    if not rest:
        return BadCall(text, "no <｜tool▁sep｜> between its type and its name")
    if left.strip() != "function":
        return _call(left, rest[0])
    name = _DEEPSEEK_NAME.match(rest[0])
    assert name is not None  # the pattern matches the empty string too
    return _call(name[1], rest[0][name.end() :])


def _json_calls(text: str) -> Iterator[ToolCall | BadCall]:
    """The calls of JSON objects that follow each other."""
    decoder = json.JSONDecoder(strict=False)
    rest = text.strip(_LLAMA_SEPARATORS)
    if not rest:
        yield BadCall(text, "it is empty; expected a JSON object")
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            yield BadCall(rest, _not_json(error))
            return
        yield _object_call(rest[:end], value)
        rest = rest[end:].strip(_LLAMA_SEPARATORS)
        if not rest.startswith("{"):
            return  # words after the calls


def _json_call(text: str) -> ToolCall | BadCall:
    """The call of one JSON object, in a fence or not."""
    fenced = _FENCE.match(text.strip())
    try:
        return _object_call(text, json.loads(fenced[1] if fenced else text, strict=False))
    except (ValueError, RecursionError) as error:
        return BadCall(text, _not_json(error))


def _object_call(text: str, value: object) -> ToolCall | BadCall:
    if not isinstance(value, dict):
        return BadCall(text, "it is no JSON object")
    call = cast("dict[str, object]", value)
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return BadCall(text, 'it has no "name"')
    arguments = call.get("arguments", call.get("parameters", {}))
    return _call(name, arguments if isinstance(arguments, str) else None, arguments)


def _call(name: str, text: str | None, arguments: object = None) -> ToolCall | BadCall:
    """The call of `name` with arguments given as JSON text, or as read already."""
    if text is not None:
        fenced = _FENCE.search(text.strip())
        try:
            arguments = json.loads(fenced[1] if fenced else text.strip() or "{}", strict=False)
        except (ValueError, RecursionError) as error:
            return BadCall(f"{name} {text}", f"its arguments are {_not_json(error)}")
    if not isinstance(arguments, dict):
        return BadCall(f"{name} {text or arguments}", "its arguments are no JSON object")
    return ToolCall(name.strip(), cast("dict[str, Any]", arguments))


def _not_json(error: Exception) -> str:
    return f"not valid JSON: {str(error) or type(error).__name__}"
