"""Conversations to token ids by the chat template, and token ids to replies.

    messages, tools --template--> prompt ids                             first turn
    held ids + what the template appends after the reply --> prompt ids  later turns
    output ids --decode--> text --parse--> Reply(content, calls)

A later prompt is rendered whole. Of it only the text after the last reply is tokenised; before
that stand the tokens sent and generated already. With a template that keeps what it rendered
(`templates.py`), a conversation is therefore one sample.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32

from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.errors import DataError
from asyncgrpo.records import FinishReason
from asyncgrpo.rollout.chat.context_room import SHORT, ContextFullError, cannot_fit
from asyncgrpo.rollout.chat.control_tokens import ControlTokenNotice, special_tokens
from asyncgrpo.rollout.chat.detokenizer import Detokenizer
from asyncgrpo.rollout.chat.reply_parsing import (
    END_THINK,
    THINK,
    CallStyle,
    Reply,
    parse_reply,
    style_of,
)
from asyncgrpo.rollout.chat.shown import ShownMessages
from asyncgrpo.rollout.chat.template_source import given_template
from asyncgrpo.rollout.chat.templates import corrected_template, template_problem
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.group import Messages, TokenIds, TurnRecord

log = logging.getLogger(__name__)

MARK = "a-reply-that-nobody-gives"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any
    eos_token_id: Any
    eos_token: Any
    name_or_path: str
    added_tokens_decoder: Any

    def get_chat_template(self, chat_template: Any = ..., tools: Any = ...) -> Any: ...
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...
    def encode(self, text: Any, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class Chat:
    """Renders conversations as the policy sees them, and reads its replies."""

    def __init__(
        self, tokenizer: Tokenizer, rollout: RolloutConfig, *, max_model_len: int | None = None
    ) -> None:
        """`max_model_len` is the context in tokens; None = without end."""
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._max_model_len = max_model_len
        self._given = given_template(rollout.chat_template)
        self._template = self._given
        self._kwargs = dict(rollout.chat_template_kwargs)
        self._tool_format: _ToolFormat | None = None
        self._shown = ShownMessages(self.opened_text)
        self._control_tokens = ControlTokenNotice(tokenizer)
        if self._given is None and not tokenizer.chat_template:
            raise DataError(
                f"the tokenizer of `{tokenizer.name_or_path}` has no chat template; set "
                "rollout.chat_template to a Jinja template or a file that holds one"
            )

    @property
    def reads_tools(self) -> bool:
        """True after `prepare_tools`."""
        return self._tool_format is not None

    def prepare_tools(self, schemas: Sequence[ToolSchema]) -> None:
        """Prepares for conversations with tools, with a corrected template where it must.

        Raises:
            DataError: the template breaks the rule, or its family's calls cannot be read.
        """
        own = self._own_template(schemas)
        style = style_of(own)
        if style is None:
            raise DataError(
                "the chat template does not show how this model calls tools; understood are "
                "<tool_call> with JSON (Qwen2.5, Qwen3, Hermes) or with XML (Qwen3.5), Llama 3 "
                "and DeepSeek-V3: set rollout.chat_template to one of such a family"
            )
        problem = self._problem(self._template, schemas)
        if problem is not None:
            corrected = None if self._given is not None else corrected_template(own, style)
            if corrected is None or self._problem(corrected, schemas) is not None:
                raise DataError(
                    f"the chat template cannot be used with tools: {problem}; set "
                    "rollout.chat_template to one that keeps what it rendered"
                )
            log.info("a corrected chat template is used, for with the model's own: %s", problem)
            self._template = corrected
        self._tool_format = self._read_format(style)

    def render(
        self, messages: Messages, schemas: Sequence[ToolSchema] = ()
    ) -> Int32[np.ndarray, "P"]:
        """Token ids of `messages` with the assistant's turn opened; blocking, a template is code.

        A conversation that ends with a message of the assistant has its turn open already: the
        policy goes on with that message.

        Raises:
            DataError: the template refuses the conversation, leaves a message out, or renders
                nothing, or more than fits.
        """
        self.check(messages, schemas)
        self._control_tokens.look(messages)
        text = self.opened_text(messages, schemas)
        self._check_room(text, messages)
        prompt_ids = self._ids(text)
        if prompt_ids.size == 0:
            raise DataError("the chat template rendered no token")
        return prompt_ids

    def check(self, messages: Messages, schemas: Sequence[ToolSchema] = ()) -> None:
        """Checks that the template takes the conversation and shows it whole. Raises DataError."""
        self._shown.check(messages, schemas)

    def opened_text(self, messages: Messages, schemas: Sequence[ToolSchema] = ()) -> str:
        """The conversation as text, up to where the policy goes on. Raises DataError."""
        continued = messages[-1]["role"] == "assistant"
        return str(self._apply(messages, schemas, opened=not continued, continued=continued))

    # docs/decisions/0032
    def continued(
        self,
        turn: TurnRecord,
        messages: Messages,
        num_results: int,
        schemas: Sequence[ToolSchema],
    ) -> Int32[np.ndarray, "P"]:
        """The prompt after `turn` and the `num_results` messages that answer it; blocking.

        Raises:
            DataError: the template refuses the conversation.
            ContextFullError: the results cannot fit.
        """
        form = self._form()
        before = self._text(messages[:-num_results], schemas, opened=False)
        after = self._text(messages, schemas, opened=True)
        results = messages[-num_results:]
        if not after.startswith(before):  # this conversation breaks the rule: a fork
            self._check_results(after, results, num_held=0)
            return self._ids(after)
        _, end, closing = before.rpartition(form.end) if form.end else ("", "", "")
        ended = turn.finish_reason is not FinishReason.LENGTH and form.ends(turn.output_ids)
        appended = ("" if ended else end) + closing * bool(end) + after[len(before) :]
        held = [np.asarray(ids, np.int32) for ids in (turn.prompt_ids, turn.output_ids)]
        self._control_tokens.look(results)
        self._check_results(appended, results, num_held=sum(ids.size for ids in held))
        return np.concatenate([*held, self._ids(appended)])

    def text(self, output_ids: Any) -> str:
        """The text of a turn, without special tokens."""
        return self._detokenizer.text(output_ids)

    def reply(self, output_ids: Any, schemas: Sequence[ToolSchema]) -> Reply:
        """The reply of a turn: its text and its calls."""
        form = self._form()
        ids = form.without_end(output_ids)
        text = self._detokenizer.text_with_specials(ids)
        reply = parse_reply(text, form.style, schemas, thinking=form.thinking)
        return reply if reply.calls else Reply(text, self.text(output_ids))

    def _check_room(self, text: str, messages: Messages) -> None:
        """Raises a `DataError` for a prompt of megabytes, which cannot fit in the context."""
        room = self._max_model_len
        characters = sum(len(str(message.get("content", ""))) for message in messages)
        if room is None or characters <= SHORT:
            return
        if cannot_fit(self._encode, text, room):
            raise DataError(
                f"a prompt of {characters:,} characters leaves no room in the context of {room} "
                "tokens; raise server.max_model_len"
            )

    def _check_results(self, appended: str, results: Messages, *, num_held: int) -> None:
        """Raises ContextFullError for results that cannot fit behind the tokens held."""
        if self._max_model_len is None:
            return
        room = self._max_model_len - num_held
        if cannot_fit(self._encode, appended, room):
            longest = max(results, key=lambda message: len(str(message["content"])))
            raise ContextFullError(
                f"tool `{longest['name']}` returned {len(str(longest['content'])):,} characters, "
                f"and the context has room for {room} tokens; return less from it, or raise "
                "server.max_model_len"
            )

    def _own_template(self, schemas: Sequence[ToolSchema]) -> str:
        if self._given is not None:
            return self._given
        # A tokenizer may hold a template for conversations with tools beside another.
        return str(self._tokenizer.get_chat_template(None, list(schemas)))

    def _problem(self, template: str | None, schemas: Sequence[ToolSchema]) -> str | None:
        def render(messages: Messages, *, opened: bool) -> str:
            return self._text(messages, schemas, opened=opened, template=template)

        try:
            return template_problem(render, schemas)
        except DataError as error:
            return str(error)

    def _read_format(self, style: CallStyle) -> "_ToolFormat":
        """The format that the template has for replies, read off an invented one."""
        prompt: Messages = [{"role": "user", "content": "hello"}]
        opened = self._text(prompt, (), opened=True)
        replied = self._text([*prompt, {"role": "assistant", "content": MARK}], (), opened=False)
        closing = replied.rpartition(MARK)[2]
        special = special_tokens(self._tokenizer)
        return _ToolFormat(
            style=style,
            end=max((t for t in special.values() if closing.startswith(t)), key=len, default=""),
            end_ids=frozenset(special),
            thinking=THINK in opened and END_THINK not in opened,
        )

    def _form(self) -> "_ToolFormat":
        assert self._tool_format is not None, "prepare_tools comes before the first conversation"
        return self._tool_format

    def _text(
        self,
        messages: Messages,
        schemas: Sequence[ToolSchema],
        *,
        opened: bool,
        template: str | None = None,
    ) -> str:
        return str(self._apply(messages, schemas, opened=opened, template=template))

    def _ids(self, text: str) -> Int32[np.ndarray, "n"]:
        return np.asarray(self._encode(text), np.int32)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _apply(
        self,
        messages: Messages,
        schemas: Sequence[ToolSchema],
        *,
        opened: bool,
        continued: bool = False,
        template: str | None = None,
    ) -> Any:
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=list(schemas) or None,
                chat_template=template or self._template,
                add_generation_prompt=opened,
                continue_final_message=continued,
                tokenize=False,
                return_dict=False,
                **self._kwargs,
            )
        except Exception as error:
            raise DataError(f"the chat template failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _ToolFormat:
    """The family's format: the end of a reply and the style of its calls."""

    style: CallStyle
    end: str  # the token that closes a reply; empty where the template writes none
    end_ids: frozenset[int]  # tokens that end a turn and are no part of its text
    thinking: bool  # the prompt opens a <think> block, so the reply begins inside it

    def ends(self, output_ids: TokenIds) -> bool:
        """True for a turn that ended by itself, with a token that closes it."""
        return len(output_ids) > 0 and int(output_ids[-1]) in self.end_ids

    def without_end(self, output_ids: TokenIds) -> list[int]:
        """The tokens of a turn up to those that end it."""
        ids = np.asarray(output_ids, np.int32).tolist()
        while ids and ids[-1] in self.end_ids:
            ids.pop()
        return ids
