"""Reads JSON datagrams, and checks their fields against the types of a class."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

__all__ = ["Kinds", "checked", "checked_row", "fields_of", "kinds_of", "read_object"]

Kinds = dict[str, tuple[type, ...]]
"""The types that a JSON value may have, by field."""

_JSON_TYPES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    str | None: (str, type(None)),
    int: (int,),
    float: (float, int),
    float | None: (float, int, type(None)),
    bool: (bool,),
    tuple[int, ...]: (list,),
}


def kinds_of(kind: type, *without: str) -> Kinds:
    """Return the types of a class's fields, in their order."""
    return {name: _JSON_TYPES[hint] for name, hint in get_type_hints(kind).items() if name not in without}


def read_object(datagram: bytes, error: type[Exception]) -> dict[str, Any]:
    """Parse a JSON object; other content raises the error."""
    try:
        message = json.loads(datagram)
    except (ValueError, RecursionError) as problem:
        raise error(str(problem)) from problem
    if not isinstance(message, dict):
        raise error(f"a JSON {type(message).__name__} instead of an object")
    return message


def fields_of(message: dict[str, Any], kinds: Kinds, error: type[Exception]) -> dict[str, Any]:
    """Return these fields of a message and no others; a missing or mistyped one raises the error."""
    for name in kinds:
        if name not in message:
            raise error(f"{name} is missing")
    return {name: checked(name, message[name], types, error) for name, types in kinds.items()}


def checked_row(what: str, row: object, kinds: Kinds, error: type[Exception]) -> list[Any]:
    """Return these columns of a row, which may have further ones; a mistyped one raises the error."""
    if not isinstance(row, list) or len(row) < len(kinds):
        raise error(f"{what} is {row!r}")
    columns = zip(kinds.items(), row, strict=False)
    return [checked(f"{name} of {what}", value, types, error) for (name, types), value in columns]


def checked(name: str, value: Any, types: tuple[type, ...], error: type[Exception]) -> Any:
    """Return a value of one of these types; another one raises the error."""
    # By the exact type: bool is an int to isinstance.
    if type(value) not in types:
        raise error(f"{name} is {value!r}")
    return value
