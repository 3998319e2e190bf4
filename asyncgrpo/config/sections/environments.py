"""`rollout.environments`: one environment, or several that a column chooses among by name.

./env.py:Make                                      a class, or a function that makes an instance
{path: ./env.py:Make, kwargs: {level: 3}}          the same, called with keywords
{chess: ./games.py:Chess, go: {path: ..., ...}}    name -> either of them
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag

from asyncgrpo.config.sections.base import Kwargs, Section

KEY = "rollout.environments"


class EnvironmentSource(Section):
    """An environment class, or a function that makes an instance of one."""

    path: str
    """`package.module:name`, or `./file.py:name` relative to the recipe."""
    kwargs: Kwargs = Field(default_factory=dict)
    """Keywords of the constructor, or of the function."""


def _as_record(entry: object) -> object:
    return {"path": entry} if isinstance(entry, str) else entry


def _form(given: object) -> str:
    """The tag of the form; a mapping with a text `path` is one environment."""
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        is_one = isinstance(fields.get("path"), str) and fields.keys() <= {"path", "kwargs"}
        return "one" if is_one else "named"
    return "one" if isinstance(given, EnvironmentSource) else "none"


Source = Annotated[EnvironmentSource, BeforeValidator(_as_record)]
EnvironmentSources = Annotated[
    Annotated[EnvironmentSource, Tag("one")]
    | Annotated[Mapping[str, Source], Tag("named")]
    | Annotated[None, Tag("none")],
    Discriminator(_form),
    BeforeValidator(_as_record),
]


def sources_by_key(
    given: EnvironmentSource | Mapping[str, EnvironmentSource] | None,
) -> dict[str, EnvironmentSource]:
    """The environments by their dotted key in the recipe."""
    if given is None:
        return {}
    if isinstance(given, EnvironmentSource):
        return {KEY: given}
    return {f"{KEY}.{name}": source for name, source in given.items()}
