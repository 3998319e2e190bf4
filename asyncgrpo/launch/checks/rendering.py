"""The chat template at work on the first prompts, before the worker does it.

    template of the recipe or of the model's folder, first prompts --> the row it does not show

A model on the hub is left to the worker: its template is not here yet.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asyncgrpo.config import Config
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.chat.shown import ShownMessages
from asyncgrpo.rollout.chat.template_source import folder_template, given_template, spellings
from asyncgrpo.rollout.chat.tool_schema import ToolSchema
from asyncgrpo.rollout.data.row_mapping import Prompt
from asyncgrpo.rollout.group import Messages


def problems(config: Config, prompts: Sequence[Prompt]) -> Iterator[str]:
    """The problem with the first prompt that the template does not show whole."""
    if config.rollout.environments is not None or config.rollout.loop is not None:
        return  # what is rendered is not the row's conversation alone
    folder = Path(config.model.name_or_path)
    try:
        template = given_template(config.rollout.chat_template) or folder_template(folder)
    except DataError as error:
        yield str(error)
        return
    if template is None:
        return
    shown = ShownMessages(_Rendering(template, spellings(folder), config))
    for prompt in prompts:
        try:
            shown.check(prompt.messages)
        except DataError as error:
            yield f"data.path `{config.data.path}`: row {prompt.row_index}: {error}"
            return


class _Rendering:
    """A template at work as a tokenizer has it, without tools."""

    def __init__(self, template: str, tokens: dict[str, str], config: Config) -> None:
        self._template = template
        self._variables: dict[str, Any] = {**tokens, **config.rollout.chat_template_kwargs}

    def __call__(self, messages: Messages, schemas: Sequence[ToolSchema]) -> str:
        # Slow to import: half a second.
        from transformers.utils.chat_template_utils import render_jinja_template

        assert not schemas
        continued = messages[-1]["role"] == "assistant"
        try:
            rendered, _ = render_jinja_template(
                [messages],
                chat_template=self._template,
                add_generation_prompt=not continued,
                continue_final_message=continued,
                **self._variables,
            )
        except Exception as error:
            raise DataError(f"the chat template failed: {type(error).__name__}: {error}") from error
        return str(rendered[0])
