"""Templates for conversations with tools: the rule, its breaches, the corrections."""

# ruff: noqa: RUF001 - the bars of DeepSeek's tokens are full width

import logging
import re
from importlib import resources

import numpy as np
import pytest

from asyncgrpo.config import Config
from asyncgrpo.errors import DataError
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.chat.chat import Chat
from asyncgrpo.rollout.chat.reply_parsing import CallStyle, ToolCall, parse_reply
from asyncgrpo.rollout.chat.templates import corrected_template, template_problem
from asyncgrpo.rollout.group import TurnRecord
from asyncgrpo.rollout.tools.tools import schema_of
from tests.rollout import chat_fakes as fakes
from tests.rollout import tool_functions as tools

SCHEMAS = [schema_of(tools.add, key="k")]
USER = {"role": "user", "content": "What is 1 + 2?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "name": "add", "content": "3"},
    {"role": "tool", "name": "add", "content": "three"},
    {"role": "assistant", "content": "It is 3."},
]


def rollout(**fields):
    return Config.model_validate({"model": {"name_or_path": "x"}, "rollout": fields}).rollout


def renderer(template, schemas=SCHEMAS, **kwargs):
    tokenizer = fakes.tokenizer(template)

    def render(messages, *, opened):
        return tokenizer.apply_chat_template(
            messages,
            tools=schemas,
            tokenize=False,
            add_generation_prompt=opened,
            **({"bos_token": "<bos>"} | kwargs),
        )

    return render


# The rule


def test_a_template_that_keeps_what_it_rendered_has_no_problem():
    assert template_problem(renderer(fakes.KEEPS), SCHEMAS) is None


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (fakes.QWEN3, r"it rewrites what it rendered before: '<think>.*' became 'reply 0"),
        (fakes.FORGETS, r"it rewrites what it rendered before: 'reply 0.*' became '<|im_end|>"),
        (fakes.HIDES_TOOLS, "it does not show the tools to the model: `add`"),
        (fakes.HIDES_RESULTS, "it does not show the results of tools to the model"),
    ],
)
def test_a_template_that_breaks_the_rule_is_told_apart(template, problem):
    found = template_problem(renderer(template), SCHEMAS)
    assert found is not None
    assert re.search(problem, found, re.DOTALL)


# What is done about it, at the start


def test_qwen3s_template_is_replaced_by_one_that_keeps_the_rule(caplog):
    chat = Chat(fakes.tokenizer(fakes.QWEN3), rollout())
    with caplog.at_level(logging.INFO):
        chat.prepare_tools(SCHEMAS)
    assert "a corrected chat template is used" in caplog.text
    corrected = corrected_template(fakes.QWEN3, CallStyle.HERMES)
    assert template_problem(renderer(corrected), SCHEMAS) is None


def test_two_calls_of_a_reply_go_on_with_a_template_that_takes_one():
    """The template gets the reply as the policy wrote it, so it counts no calls."""
    chat = Chat(fakes.tokenizer(fakes.ONE_CALL), rollout())
    chat.prepare_tools(SCHEMAS)
    prompt_ids = chat.render([USER], SCHEMAS)
    ids = fakes.says(fakes.call("add", a=1, b=2) + fakes.call("add", a=3, b=4))
    reply = chat.reply(ids, SCHEMAS)
    assert len(reply.calls) == 2
    results = [{"role": "tool", "name": "add", "content": text} for text in ("three", "seven")]
    said = {"role": "assistant", "content": reply.text}
    turn = TurnRecord(prompt_ids, ids, finish_reason=FinishReason.STOP)
    heard = fakes.heard(chat.continued(turn, [USER, said, *results], 2, SCHEMAS))
    assert heard.index("three") < heard.index("seven")


def test_the_corrected_template_shows_the_first_prompt_as_the_models_own_does():
    corrected = corrected_template(fakes.QWEN3, CallStyle.HERMES)
    for messages in ([USER], CONVERSATION[:2], [USER, {"role": "assistant", "content": "3"}, USER]):
        own, mended = renderer(fakes.QWEN3), renderer(corrected)
        assert mended(messages, opened=True) == own(messages, opened=True)


def test_reasoning_of_earlier_replies_is_kept():
    corrected = corrected_template(fakes.QWEN3, CallStyle.HERMES)
    reply = {"role": "assistant", "content": "<think>\nbecause\n</think>\n\nIt is 3."}
    text = renderer(corrected)([USER, reply, USER], opened=True)
    assert "<think>\nbecause\n</think>\n\nIt is 3." in text
    assert "because" not in renderer(fakes.QWEN3)([USER, reply, USER], opened=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (fakes.FORGETS, "cannot be used with tools: it rewrites what it rendered"),
        (fakes.HIDES_TOOLS, "does not show the tools"),
        ("{{ raise_exception('no tools here') }}<tool_call>", "no tools here"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "how this model calls tools"),
    ],
)
def test_a_template_that_cannot_be_mended_is_refused_at_the_start(template, message):
    with pytest.raises(DataError, match=message):
        Chat(fakes.tokenizer(template), rollout()).prepare_tools(SCHEMAS)


def test_a_template_of_the_recipes_own_is_refused_rather_than_replaced():
    with pytest.raises(DataError, match=r"rewrites .*; set rollout.chat_template"):
        Chat(fakes.tokenizer(), rollout(chat_template=fakes.QWEN3)).prepare_tools(SCHEMAS)


# The templates that replace a family's own


@pytest.mark.parametrize("style", [CallStyle.DEEPSEEK, CallStyle.LLAMA3])
def test_a_shipped_template_keeps_the_rule(style):
    template = corrected_template("", style)
    render = renderer(template)
    assert template_problem(render, SCHEMAS) is None
    assert template_problem(renderer(template, None), []) is None


@pytest.mark.parametrize(
    ("style", "opening", "end"),
    [
        (CallStyle.DEEPSEEK, "<｜Assistant｜>", "<eos>"),
        (CallStyle.LLAMA3, "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ],
)
def test_calls_in_a_prompt_are_written_as_they_are_read(style, opening, end):
    template = corrected_template("", style)
    text = renderer(template, eos_token="<eos>")(CONVERSATION[:3], opened=False)
    reply = text.partition(opening)[2].partition(end)[0]
    assert parse_reply(reply, style).calls == (ToolCall("add", {"a": 1, "b": 2}),) * 2


def test_deepseeks_rounds_of_calls_are_opened_and_closed_alike():
    text = renderer(corrected_template("", CallStyle.DEEPSEEK))(
        [*CONVERSATION[:5], *CONVERSATION[2:5]], opened=True
    )
    head, *rounds = text.split("<｜tool▁outputs▁begin｜>")
    assert len(rounds) == 2
    for part in rounds:
        assert part.count("<｜tool▁output▁begin｜>") == 2
        assert part.count("<｜tool▁outputs▁end｜>") == 1
    assert head.count("<｜Assistant｜>") == 1
    assert text.endswith("<｜tool▁outputs▁end｜>")  # the reply follows at once


def test_r1s_replies_go_on_thinking():
    own = "{{'<｜User｜>'}}{{'<｜Assistant｜><think>\\n'}}"
    render = renderer(corrected_template(own, CallStyle.DEEPSEEK))
    assert render([USER], opened=True).endswith("<｜Assistant｜><think>\n")
    assert template_problem(render, SCHEMAS) is None


def test_a_reply_that_begins_inside_a_think_block_calls_only_after_it():
    chat = Chat(fakes.tokenizer(fakes.THINKS), rollout())
    chat.prepare_tools(SCHEMAS)
    call = fakes.call("add", a=1, b=2)
    assert chat.reply(fakes.says(f"I may write {call}"), SCHEMAS).calls == ()
    assert chat.reply(fakes.says(f"I may write {call}</think>So be it."), SCHEMAS).calls == ()
    (made,) = chat.reply(fakes.says(f"Let me add.</think>{call}"), SCHEMAS).calls
    assert isinstance(made, ToolCall)
    assert made.arguments == {"a": 1, "b": 2}


def test_the_shipped_templates_are_part_of_the_package():
    folder = resources.files("asyncgrpo.rollout.chat") / "training_templates"
    assert {f.name for f in folder.iterdir()} == {"deepseek_v3.jinja", "llama3.jinja"}


# Prompts of later turns


@pytest.mark.parametrize("template", [fakes.KEEPS, fakes.QWEN3])
@pytest.mark.parametrize("ends", [True, False])
def test_a_later_prompt_is_the_tokens_held_and_what_the_template_appends(template, ends):
    chat = Chat(fakes.tokenizer(template), rollout())
    chat.prepare_tools(SCHEMAS)
    prompt_ids = chat.render([USER], SCHEMAS)
    output_ids = fakes.says(fakes.call("add", a=1, b=2), ends=ends)
    reason = FinishReason.STOP if ends else FinishReason.LENGTH
    turn = TurnRecord(prompt_ids, output_ids, finish_reason=reason)
    reply = {"role": "assistant", "content": chat.reply(output_ids, SCHEMAS).text}
    result = {"role": "tool", "name": "add", "content": "3"}
    later = chat.continued(turn, [USER, reply, result, result], 2, SCHEMAS)
    held = [*prompt_ids.tolist(), *output_ids]
    assert later[: len(held)].tolist() == held
    closing = "" if ends else "<|im_end|>"
    response = "\n<tool_response>3</tool_response>"
    assert fakes.heard(later[len(held) :]) == (
        f"{closing}\n<|im_start|>user{response}{response}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tokens_the_policy_chose_are_kept_where_the_tokenizer_would_choose_others():
    chat = Chat(fakes.tokenizer(), rollout())
    chat.prepare_tools(SCHEMAS)
    prompt_ids = chat.render([USER], SCHEMAS)
    letter_by_letter = [token for letter in "user" for token in fakes.ids(letter)]
    assert letter_by_letter != fakes.ids("user")
    output_ids = [*letter_by_letter, *fakes.says(fakes.call("add", a=1, b=2))]
    reply = chat.reply(output_ids, SCHEMAS)
    assert reply.content == "user"
    messages = [
        USER,
        {"role": "assistant", "content": reply.text},
        {"role": "tool", "name": "add", "content": "3"},
    ]
    later = chat.continued(TurnRecord(prompt_ids, output_ids), messages, 1, SCHEMAS)
    held = np.concatenate([prompt_ids, output_ids])
    assert (later[: held.size] == held).all()


# A context that is not without end


@pytest.mark.parametrize("template", [fakes.KEEPS, fakes.FORGETS], ids=["continued", "forks"])
def test_results_are_shown_as_long_as_they_can_fit(template):
    def later(result: str, max_model_len: int | None):
        tokenizer = fakes.tokenizer(fakes.KEEPS)
        chat = Chat(tokenizer, rollout(), max_model_len=max_model_len)
        chat.prepare_tools(SCHEMAS)
        chat._template = template
        prompt_ids = chat.render([USER], SCHEMAS)
        output_ids = fakes.says(fakes.call("add", a=1, b=2))
        reply = {"role": "assistant", "content": chat.reply(output_ids, SCHEMAS).text}
        messages = [USER, reply]
        messages += [{"role": "tool", "name": "add", "content": text} for text in (result, "3")]
        return chat.continued(TurnRecord(prompt_ids, output_ids), messages, 2, SCHEMAS).tolist()

    long = "What is it? " * 5000
    whole = later(long, None)
    assert later(long, len(whole)) == whole
    with pytest.raises(DataError, match=r"^tool `add` returned 60,000 characters, and the context"):
        later(long, 3000)


def test_a_prompt_of_megabytes_is_refused_and_a_long_one_is_not():
    long = {"role": "user", "content": "What is it? " * 1500}
    whole = Chat(fakes.tokenizer(), rollout()).render([long]).tolist()
    chat = Chat(fakes.tokenizer(), rollout(), max_model_len=len(whole))
    assert chat.render([long]).tolist() == whole
    with pytest.raises(DataError, match=r"216,000 characters leaves no room in the context of"):
        chat.render([{"role": "user", "content": long["content"] * 12}])
