"""The one error for whatever a user, a file or the network got wrong."""

import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class BadInput(ValueError):
    """One clear sentence with the names and numbers; the command line prints it and exits with 2, nothing written."""


def first_fault(error: "ValidationError", named: Callable[[str], str] = str) -> str:
    """The first thing that pydantic found wrong: the place, called as `named` says, its value, and what it should be."""
    fault = error.errors()[0]
    place = named(".".join(map(str, fault["loc"]))) if fault["loc"] else "it"
    if fault["type"] == "missing":
        return f"{place} is missing"
    what = fault["msg"].removeprefix("Value error, ")
    return f"{place} is {reprlib.repr(fault['input'])}: {what[:1].lower()}{what[1:]}"
