"""A model of 320 tokens that calls tools: its tokenizer, templates and scripted replies.

The tokenizer is that of `tests/assets/sums-model`, which can write any text. The templates are
miniatures of the families' own, with the features that are tested here.
"""

import json
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

SUMS_MODEL = Path(__file__).parents[1] / "assets/sums-model"
EOS = 2

_TOOLS = (
    "{% if tools %}<|im_start|>system\n<tools>"
    "{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools> <tool_call><|im_end|>\n"
    "{% endif %}"
)
_REST = (
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\n' }}"
    "<tool_response>{{ m.content }}</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

KEEPS = _TOOLS + "{% for m in messages %}{% if false %}" + _REST
"""As Qwen2.5: what was rendered stays."""

QWEN3 = (
    _TOOLS
    + "{% set ns = namespace(last_query_index=0) %}"
    + "{% for m in messages %}{% if m.role == 'user' %}"
    + "{% set ns.last_query_index = loop.index0 %}{% endif %}{% endfor %}"
    + "{% for m in messages %}{% if m.role == 'assistant' %}"
    + "{% set reasoning_content = '' %}{% set content = m.content %}"
    + "{% if '</think>' in content %}"
    + "{% set reasoning_content = content.split('</think>')[0].split('<think>')[-1].strip() %}"
    + "{% set content = content.split('</think>')[-1].lstrip() %}{% endif %}"
    + "<|im_start|>assistant\n"
    + "{% if loop.index0 > ns.last_query_index %}"
    + "{% if loop.last or (not loop.last and reasoning_content) %}"
    + "<think>\n{{ reasoning_content }}\n</think>\n\n{% endif %}{% endif %}"
    + "{{ content }}<|im_end|>\n"
    + _REST
)
"""As Qwen3: the last reply gets an empty <think> block, and loses it when it is not the last."""

THINKS = KEEPS.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
)
"""As the thinking models: the prompt opens a <think> block, so no reply does."""

ONE_CALL = KEEPS.replace(
    "{% if false %}",
    "{% if m.tool_calls is defined and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}",
)
"""As Llama 3.1: it refuses a reply with two calls."""

HIDES_TOOLS = KEEPS.removeprefix(_TOOLS) + "{# <tool_call> #}"
FORGETS = KEEPS.replace(
    "{% else %}<|im_start|>{{ m.role }}",
    "{% elif m.role == 'assistant' and not loop.last %}<|im_start|>assistant\n<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}",
)
"""Drops what earlier replies said; of no known family."""
FORGETS_WHAT_IS_ODD = KEEPS.replace(
    "{% else %}<|im_start|>{{ m.role }}",
    "{% elif m.role == 'assistant' and 'odd' in m.content and not loop.last %}"
    "<|im_start|>assistant\nnothing<|im_end|>\n{% else %}<|im_start|>{{ m.role }}",
)
"""Drops what some replies said: no check at the start can know."""
HIDES_RESULTS = KEEPS.replace("{{ m.content }}</tool_response>", "</tool_response>")


def tokenizer(template=KEEPS):
    made = AutoTokenizer.from_pretrained(SUMS_MODEL)
    made.chat_template = template
    return made


_plain = tokenizer()


def ids(text: str) -> list[int]:
    return _plain.encode(text, add_special_tokens=False)


def says(text: str, *, ends: bool = True) -> list[int]:
    """The server's answer where the policy replies `text`."""
    return [*ids(text), EOS] if ends else ids(text)


def call(name: str, **arguments: object) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def heard(prompt_ids: list[int] | np.ndarray) -> str:
    """The prompt as text, for a script to answer."""
    return _plain.decode(prompt_ids)
