"""Chat templates for conversations with tools: the rule, its check, corrected templates.

    rendered(user, reply)                    must begin
    rendered(user, reply, tool result)       this, and this must begin
    rendered(user, reply, tool result, ...)  what comes later

A template that breaks the rule shows the policy another history than it generated, so every turn
would start another sample. A template that leaves the tools out cannot be used at all.

    Qwen3        writes an empty <think> block into the last reply only    patched: into each
    DeepSeek-V3  shows no tools; its second round of calls is malformed    replaced
    Llama 3      shows no tools, in some versions                          replaced

A patched template shows the first prompt exactly as the model's own does.
"""

# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full width

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Protocol

from asyncgrpo.rollout.chat.reply_parsing import CallStyle
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.group import Messages


class Render(Protocol):
    """A template at work, with the tools it shows."""

    def __call__(self, messages: Messages, *, opened: bool) -> str: ...


RESULT = "result-{}-of-a-call"
SHOWN_CHARACTERS = 60

# A condition of Qwen3's template on the position of a reply -> one on the reply alone.
# docs/decisions/0033
_QWEN3_PATCHES = (
    (re.compile(r"loop\.last or \(not loop\.last and reasoning_content\)"), "true"),
    (
        re.compile(r"loop\.index0 > ns\.last_query_index(?! or)"),
        "loop.index0 > ns.last_query_index or reasoning_content",
    ),
)

_DEEPSEEK_THINKS = "<｜Assistant｜><think>"
_DEEPSEEK_OPENING = "set opening = '<｜Assistant｜>'"
_DEEPSEEK_THINKING = r"set opening = '<｜Assistant｜><think>\n'"


def corrected_template(template: str, style: CallStyle) -> str | None:
    """The training template of a family whose own breaks the rule; None if unknown."""
    match style:
        case CallStyle.DEEPSEEK:
            shipped = _shipped("deepseek_v3")
            # R1 and its distilled models begin every reply inside a <think> block.
            thinks = _DEEPSEEK_THINKS in template
            return shipped.replace(_DEEPSEEK_OPENING, _DEEPSEEK_THINKING) if thinks else shipped
        case CallStyle.LLAMA3:
            return _shipped("llama3")
        case CallStyle.HERMES | CallStyle.QWEN_XML:
            patched = template
            for pattern, replacement in _QWEN3_PATCHES:
                patched = pattern.sub(replacement, patched)
            return patched if patched != template else None


def _shipped(name: str) -> str:
    folder = resources.files("asyncgrpo.rollout.chat") / "training_templates"
    return (folder / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")


def template_problem(render: Render, schemas: Sequence[ToolSchema]) -> str | None:
    """The reason a template cannot be used with tools; None where it can."""
    prompt = render([{"role": "user", "content": "hello"}], opened=True)
    for schema in schemas:
        name = schema["function"]["name"]
        if name not in prompt:
            return f"it does not show the tools to the model: `{name}` is not in what it renders"
    for conversation in _probes():
        if problem := _rule_problem(render, conversation):
            return problem
    return None


def _probes() -> Iterator[Messages]:
    """Conversations of three replies, without and with reasoning in them."""
    for reasoning in ("", "<think>\nbecause\n</think>\n\n"):
        results = [{"role": "tool", "name": "f", "content": RESULT.format(i)} for i in range(3)]
        replies = [{"role": "assistant", "content": f"{reasoning}reply {i}"} for i in range(3)]
        user = {"role": "user", "content": "hello"}
        yield [user, replies[0], results[0], replies[1], *results[1:], replies[2]]


def _rule_problem(render: Render, conversation: Messages) -> str | None:
    rendered = ""
    for end in range(1, len(conversation) + 1):
        last = conversation[end - 1]
        more_results = conversation[end : end + 1]
        if more_results and last["role"] == more_results[0]["role"] == "tool":
            continue  # the results of one reply are appended together
        before, rendered = rendered, render(conversation[:end], opened=False)
        if not rendered.startswith(before):
            return f"it rewrites what it rendered before: {_difference(before, rendered)}"
        if last["role"] == "tool":
            if last["content"] not in rendered:
                return "it does not show the results of tools to the model"
            prompt = render(conversation[:end], opened=True)
            if not prompt.startswith(before):
                return f"it rewrites what it rendered before: {_difference(before, prompt)}"
    return None


def _difference(before: str, after: str) -> str:
    pairs = enumerate(zip(before, after, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), len(after))
    was, became = (text[start : start + SHOWN_CHARACTERS] for text in (before, after))
    return f"{was!r} became {became!r} when a message was appended"
