"""Values between judge and candidate: plain data is copied, all else stays with its owner.

    value --encode--> JSON-able --decode--> an equal value of builtin types

    null, true, 1, 0.5, "s"                              themselves
    ["list", ...] ["tuple", ...] ["dict", [k, v], ...]   containers; subclasses as their base
    ["far", handle]                                      an object that stays with its owner
    ["near", handle]                                     one of the receiver's own, sent back

Decoded data has builtin types only: no method of the other side's ever runs on it.
"""

import builtins
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

Wire = Any  # any JSON value
Refer = Callable[[object], Wire]
Resolve = Callable[[str, Any], object]


class Reference:
    """An object that stands for one of the other side's."""


def encode(value: Any, refer: Refer) -> Wire:
    """A value for the wire; `refer` stands in for an object that is not copied."""
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    copied = None if isinstance(value, Reference) else _copied(value, refer)
    return refer(value) if copied is None else copied


def _copied(value: Any, refer: Refer) -> list[Any] | None:
    """The form of a copied value; None for an object that stays with its owner."""
    for base, items in _CONTAINERS.items():
        if isinstance(value, base):
            return [base.__name__, *(encode(item, refer) for item in items(value))]
    if isinstance(value, dict):
        pairs = dict.items(cast("dict[Any, Any]", value))
        return ["dict", *([encode(k, refer), encode(v, refer)] for k, v in pairs)]
    for base, parts in _SCALARS.items():
        if type(value) is base or (base in {int, float, str} and isinstance(value, base)):
            return [base.__name__, *parts(value)]
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and getattr(builtins, name, None) is value:
        return ["builtin", name]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        item = value.item()
        return [type(item).__name__, *_SCALARS[type(item)](item)]
    return None


def decode(wire: Wire, resolve: Resolve) -> Any:
    """The value of a wire form; `resolve` turns ("far" | "near", handle) into an object.

    Raises:
        ValueError: it is no wire form.
    """
    if not isinstance(wire, list):
        return wire
    if not wire or not isinstance(wire[0], str):
        raise ValueError("no value of the wire")
    kind, parts = wire[0], cast("list[Any]", wire[1:])
    if kind in _MAKE_CONTAINER:
        return _MAKE_CONTAINER[kind](decode(part, resolve) for part in parts)
    if kind == "dict":
        return {decode(k, resolve): decode(v, resolve) for k, v in parts}
    if kind in _MAKE_SCALAR:
        return _MAKE_SCALAR[kind](*parts)
    if kind == "builtin":
        return getattr(builtins, str(parts[0]))
    if kind in {"far", "near"}:
        return resolve(kind, parts[0])
    raise ValueError(f"no kind of value: {kind!r}")


def builtin_exception(names: Iterable[object], text: object) -> Exception:
    """An exception of the first class named that is a builtin one.

    The names are those of a raised exception's class and its bases.
    """
    found = (getattr(builtins, str(name), None) for name in names)
    kinds = (kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception))
    return next(kinds, RuntimeError)(str(text))


_CONTAINERS: dict[type, Callable[[Any], Any]] = {
    list: list.__iter__, tuple: tuple.__iter__, set: set.__iter__, frozenset: frozenset.__iter__,
}  # fmt: skip
_MAKE_CONTAINER: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset,
}  # fmt: skip
_SCALARS: dict[type, Callable[[Any], list[Any]]] = {
    bool: lambda v: [v],
    int: lambda v: [int.__int__(v)],
    float: lambda v: [float.__float__(v)],
    str: lambda v: [str.__str__(v)],
    bytes: lambda v: [v.hex()],
    bytearray: lambda v: [v.hex()],
    complex: lambda v: [v.real, v.imag],
    range: lambda v: [v.start, v.stop, v.step],
    slice: lambda v: [v.start, v.stop, v.step],
    Fraction: lambda v: [v.numerator, v.denominator],
    Decimal: lambda v: [str(v)],
}
_MAKE_SCALAR: dict[str, Callable[..., Any]] = {
    "bool": bool, "int": int,
    "float": float, "str": str, "complex": complex, "range": range, "slice": slice,
    "Fraction": Fraction, "Decimal": Decimal, "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
}  # fmt: skip
