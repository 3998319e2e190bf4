"""The configuration reference, printed from the tree: `python -m asyncgrpo.config.reference`.

Config --fields, docstrings--> one table per section --> docs/configuration.md
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from asyncgrpo.config.derive import keys_derived
from asyncgrpo.config.describe import annotation_of, describe, sections_at
from asyncgrpo.config.other_names import OTHER_NAMES
from asyncgrpo.config.problems import Key, dotted
from asyncgrpo.config.reading.built_in import PLACES, built_in_names
from asyncgrpo.config.rules.not_yet import NOT_YET
from asyncgrpo.config.sections.base import Section
from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.config.sections.environments import EnvironmentSource
from asyncgrpo.config.sections.rollout import RewardSource
from asyncgrpo.config.sections.tree import Config

INTRODUCTION = """\
# Configuration

Which key does what? Check a recipe, and see the values derived for it, with

    asyncgrpo validate recipes/demo.yaml

This page is printed from the configuration's own declarations by
`python -m asyncgrpo.config.reference > docs/configuration.md`.

A recipe is YAML: sections of keys. A key that is left out has its default; `null` (and `auto`)
mean that the value is derived, and `validate` shows which value and why. Unknown keys are errors,
and all errors of a recipe are shown at once, each with file and line.

| to | write |
|---|---|
| build on other files | `extends: [../configs/cpu.yaml]`, relative to the file; the recipe wins |
| change a key for one run | `asyncgrpo train recipe.yaml loss.epsilon=0.1 'server.devices=[0,1]'` |
| use another key's value | `${trainer.max_steps}`; `\\${` for the characters |
| pass a vLLM flag that has no key | `server.extra_args: {max-num-seqs: 64}` |

Of several files in `extends`, later ones win. Mappings merge key by key; lists and everything else
are replaced whole.

A path (`model.name_or_path`, `data.path`, `./file.py:name`, ...) is looked for beside the file
that names it, then beside the recipe, then in the working directory. `model.name_or_path` and
`data.path` are hub ids where no such path exists. `run.dir` and `sync.path` are written, so they
are relative to the working directory.

Secrets are never values of a key: the keys that end in `_env` name environment variables.
"""


# Sections that an import path can stand for, and where they are.
NAMED_BY_PATH: dict[type[Section], str] = {
    EnvironmentSource: "rollout.environments",
    RewardSource: "rollout.rewards[]",
}


def reference() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_sections(), *_not_yet(), *_other_names()]) + "\n"


def _sections() -> Iterator[str]:
    for name, info in Config.model_fields.items():
        (section,) = sections_at(info.annotation)
        yield from _table(name, section, info.description or "")


def _table(name: str, section: type[Section], about: str) -> Iterator[str]:
    yield f"## {name}\n\n{about}\n"
    yield "| key | takes | default | |"
    yield "|---|---|---|---|"
    for leaf, info in section.model_fields.items():
        takes = _one_of_ours((name, leaf)) or _takes(info)
        about = f"{_limited((name, leaf))}{_about(info)}"
        yield f"| `{leaf}` | {takes} | {_default(f'{name}.{leaf}', info)} | {about} |"
    yield ""
    for leaf, info in section.model_fields.items():
        for inner in _tables_at(annotation_of(info)):
            if inner is not DataSource:
                yield from _table(f"{name}.{leaf}", inner, inner.__doc__ or "")
    if name == "rollout":
        for source, key in NAMED_BY_PATH.items():
            yield from _table(key, source, source.__doc__ or "")


def _tables_at(annotation: Any) -> Iterator[type[Section]]:
    """The sections an annotation allows, but for those that a path can stand for."""
    return (inner for inner in sections_at(annotation) if inner not in NAMED_BY_PATH)


def _one_of_ours(key: Key) -> str | None:
    if key not in PLACES:
        return None
    return f"one of {', '.join(built_in_names(key))}, or an import path"


def _takes(info: FieldInfo) -> str:
    annotation = annotation_of(info)
    for inner in _tables_at(annotation):
        same = "as `data`" if inner is DataSource else "a mapping, below"
        return f"{same}, or null"
    words = describe(annotation)
    for source in NAMED_BY_PATH:
        words = words.replace(describe(source), "an import path or a mapping, below")
    return words.replace("|", "\\|")


def _default(key: str, info: FieldInfo) -> str:
    value: Any = info.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return ""
    text = f"`{json.dumps(value)}`"
    return f"{text}, derived" if key in keys_derived() else text


def _about(info: FieldInfo) -> str:
    return " ".join((info.description or "").split()).replace("|", "\\|")


def _limited(key: Key) -> str:
    """The mark of a key that takes fewer values than its type says."""
    rows = [row for row in NOT_YET if row.key == key]
    return f"**Not yet: {rows[0].instead}.** " if rows else ""


def _not_yet() -> Iterator[str]:
    yield "## Not yet available\n"
    yield "These keys take fewer values than their type says; the others are refused by name.\n"
    yield "| key | instead |"
    yield "|---|---|"
    for row in NOT_YET:
        yield f"| `{dotted(row.key)}` | {row.instead} |"


def _other_names() -> Iterator[str]:
    yield "\n## Names of other trainers\n"
    yield "A recipe or an option that has one of these is refused with the same words.\n"
    yield "| there | here |"
    yield "|---|---|"
    for row in OTHER_NAMES:
        here = [f"`{row.key}`"] if row.key else ["no such key"]
        names = ", ".join(f"`{name}`" for name in row.names)
        yield f"| {names} | {': '.join([*here, *([row.note] if row.note else [])])} |"


if __name__ == "__main__":
    print(reference(), end="")
