"""How described parts are checked: types and bounds stand once beside the field, a wrong value gets one sentence."""

import functools
import json
import typing
from dataclasses import fields, is_dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from distributed.planner.errors import PlanError

# Bounds so wide that no model or machine meets them, and so narrow that no product or quotient of figures leaves a float.
Size = Annotated[int, Field(ge=0, le=10**12)]
Figure = Annotated[float, Field(ge=0, le=1e12)]
Positive = Annotated[float, Field(ge=1e-9, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Described:
    """A part of a description: unknown names, other types and numbers that are not finite are refused by `build`."""

    __pydantic_config__ = STRICT


@functools.cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def build(kind: Any, values: dict[str, Any], where: str) -> Any:
    """The `Described` data class `kind` of a parsed JSON or TOML object; `PlanError` says what of `where` is wrong."""
    try:
        # As JSON, in which lists are tuples and objects are parts, and nothing else is taken for another type.
        return _reader(kind).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        raise PlanError(f"{where}: {sentence_of(error, kind)}") from None
    except RecursionError:
        raise PlanError(f"{where}: objects lie too deep in each other to be read") from None


def sentence_of(error: ValidationError, kind: Any = None) -> str:
    """The first thing that is wrong: its name, its value and what it should be. With `kind`, known names beside an unknown."""
    fault = error.errors(include_url=False)[0]
    name = ".".join(map(str, fault["loc"]))
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "json_invalid":
        return f"not JSON, {fault['ctx']['error'].replace(' at line 1 column', ' at column')}"
    if fault["type"] == "missing":
        return f"{name} is missing"
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown {name}; known: {', '.join(_known(kind, fault['loc']))}"
    shown = json.dumps(fault["input"], default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    return f"{name} is {shown}; {fault['msg'].replace('Input', 'it', 1)}"


def _known(kind: Any, place: tuple[str | int, ...]) -> list[str]:
    """Names of the part in which the last of `place` is unknown."""
    for name in place[:-1]:
        if isinstance(name, str):
            hint = typing.get_type_hints(kind)[name]
            kind = next(part for part in (hint, *typing.get_args(hint)) if is_dataclass(part))
    return sorted(field.name for field in fields(kind))
