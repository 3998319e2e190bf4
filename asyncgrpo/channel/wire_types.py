"""Record types to decode messages as, with array types that are fast to check.

    Sample.input_ids: Int32[np.ndarray, "n"]
    a subclass:       np.ndarray[Int32[np.ndarray, "n"]]

msgspec checks every value of a dec_hook by `isinstance`. With a jaxtyping type that costs 10 us an
array. With a generic type it checks the origin, np.ndarray, which costs nothing; the hook gets the
generic type and checks dtype and rank itself.
"""

import types
from functools import cache, reduce
from operator import or_
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from jaxtyping import AbstractArray


@cache
def wire_type(kind: Any) -> Any:
    """The type to decode a `kind` as: `kind` itself where it has no arrays.

    Args:
        kind: a record, or what an annotation of a record's field may be made of.
    """
    if isinstance(kind, type) and issubclass(kind, AbstractArray):
        return types.GenericAlias(np.ndarray, (kind,))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _wire_record(kind)
    args = tuple(wire_type(arg) for arg in get_args(kind))
    if args == get_args(kind):
        return kind
    origin: Any = get_origin(kind)
    return reduce(or_, args) if origin is types.UnionType else origin[args]


def _wire_record(record: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The record, or where it has arrays, a subclass with their fields declared anew."""
    hints = get_type_hints(record)
    fields = msgspec.structs.fields(record)
    anew = [
        (field.name, wire_type(hints[field.name]), field.default)
        for field in fields
        if wire_type(hints[field.name]) != hints[field.name]
    ]
    made = {field.name for field in fields if field.default_factory is not msgspec.NODEFAULT}
    assert made.isdisjoint(name for name, _, _ in anew), "a field of arrays has a plain default"
    if not anew:
        return record
    return msgspec.defstruct(record.__name__, anew, bases=(record,), module=record.__module__)
