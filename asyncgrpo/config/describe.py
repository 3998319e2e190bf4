"""The description of a key: its type in words, the words it allows.

("rollout", "temperature") --annotation_at--> Annotated[float, Ge(0)] --describe--> "a number >= 0"
"""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from asyncgrpo.config.problems import Key
from asyncgrpo.config.sections.base import Section

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def sections_at(annotation: Any) -> Iterator[type[Section]]:
    """The sections an annotation allows."""
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, Section):
            yield option


def annotation_at(root: type[Section], key: Key) -> Any:
    """The annotation of a key; None where the tree has no such key."""
    annotation: Any = root
    for part in key:
        annotation = _child(annotation, part)
        if annotation is None:
            return None
    return annotation


def _child(annotation: Any, part: str | int) -> Any:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, Section):
            info = option.model_fields.get(str(part))
            if info is not None:
                return annotation_of(info)
        elif get_origin(option) is tuple and isinstance(part, int):
            return get_args(option)[0]
        elif _is_mapping(option) and isinstance(part, str):
            return get_args(option)[1]
    return None


def annotation_of(info: FieldInfo) -> Any:
    """A field's annotation with the constraints pydantic took off it."""
    if not info.metadata:
        return info.annotation
    return Annotated[info.annotation, *info.metadata]


def choices(annotation: Any) -> tuple[str, ...]:
    """The words an annotation allows, if it lists any."""
    return tuple(
        str(word)
        for option in _options(annotation)
        if get_origin(option) is Literal
        for word in get_args(option)
    )


def describe(annotation: Any) -> str:
    """The type in words: `auto, or a whole number >= 1 and <= 65535`."""
    words = list(choices(annotation))
    parts = [", ".join(words)] if words else []
    constraints = _constraints(annotation)
    optional = False
    for option in _unpack(annotation):
        bare, own = _strip(option)
        if get_origin(bare) is Literal:
            continue
        if bare is type(None):
            optional = True
        else:
            parts.append(_describe_one(bare, [*constraints, *own]))
    if optional:
        parts.append("null")
    if words and len(words) > 1 and len(parts) == 1:
        return f"one of {parts[0]}"
    return ", or ".join(dict.fromkeys(parts))


def _describe_one(bare: Any, constraints: list[object]) -> str:
    if bare in _WORDS:
        return _WORDS[bare] + _limits(constraints)
    if isinstance(bare, type) and issubclass(bare, Section):
        return "a mapping with " + ", ".join(bare.model_fields)
    if get_origin(bare) is tuple:
        return f"a list, each {describe(get_args(bare)[0])}"
    if _is_mapping(bare):
        value = get_args(bare)[1]
        return "a mapping" if value is Any else f"a mapping of names, each {describe(value)}"
    return "any value"


def _limits(constraints: list[object]) -> str:
    limits: list[str] = []
    for constraint in constraints:
        match constraint:
            case annotated_types.Gt(gt=limit):
                limits.append(f"> {limit}")
            case annotated_types.Ge(ge=limit):
                limits.append(f">= {limit}")
            case annotated_types.Lt(lt=limit):
                limits.append(f"< {limit}")
            case annotated_types.Le(le=limit):
                limits.append(f"<= {limit}")
            case _:
                pattern = _pattern(constraint)
                if pattern:
                    limits.append(f"matching {pattern}")
    return (" " + " and ".join(limits)) if limits else ""


def _pattern(constraint: object) -> str | None:
    if isinstance(constraint, FieldInfo):
        return next((p for p in map(_pattern, constraint.metadata) if p), None)
    # pydantic keeps `pattern=` in a private general-metadata record
    pattern = vars(constraint).get("pattern") if hasattr(constraint, "__dict__") else None
    return pattern if isinstance(pattern, str) else None


def _options(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, unions and Annotated opened."""
    for option in _unpack(annotation):
        yield _strip(option)[0]


def _unpack(annotation: Any) -> Iterator[Any]:
    bare, _ = _strip(annotation)
    if get_origin(bare) in (Union, types.UnionType):
        for option in get_args(bare):
            yield from _unpack(option) if _is_union(option) else (option,)
    else:
        yield annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(_strip(annotation)[0]) in (Union, types.UnionType)


def _strip(annotation: Any) -> tuple[Any, list[object]]:
    """The annotation without `Annotated`, and the constraints that were on it."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    bare, *metadata = get_args(annotation)
    constraints: list[object] = []
    for item in metadata:
        constraints.extend(item.metadata if isinstance(item, FieldInfo) else (item,))
    inner, more = _strip(bare)
    return inner, [*more, *constraints]


def _constraints(annotation: Any) -> list[object]:
    return _strip(annotation)[1] if _is_union(annotation) else []


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)
