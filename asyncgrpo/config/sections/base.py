"""The base of every section: frozen, strict, without unknown keys, each field documented.

    key: type = default
    '''The documentation of the key, wherever it is shown.'''

`None` (or "auto") means "derive": `derive.py` fills it in before anything starts, and
`known(...)` reads it afterwards. Lists in YAML are tuples here. Paths are strings, absolute
once loaded.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict

T = TypeVar("T")

Auto = Literal["auto"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

# Strict everywhere (no "8" for 8, no true for 1), except that YAML has lists, not tuples.
Strings = Annotated[tuple[str, ...], Strict(strict=False)]
Devices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(strict=False)]
Kwargs = Mapping[str, Any]

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what generators of 64 bits take
Port = Annotated[int, Field(ge=1, le=65535)]
EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Section(BaseModel):
    """One mapping of the recipe."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


def known(value: T | Auto | None) -> T:
    """The value of a key that `derive` has filled in by now."""
    assert value is not None, "read before it was derived"
    assert value != "auto", "read before it was derived"
    return value  # pyright: ignore[reportReturnType]  # "auto" is excluded above


def as_list(value: object) -> object:
    """A list of one, if the value is a single text."""
    return (value,) if isinstance(value, str) else value
