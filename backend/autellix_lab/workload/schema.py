"""Records from JSON, checked by the types of their fields; an error names the field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record")

_JSON_TYPES = {"array": "a list", "object": "an object"}
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]")


class FieldError(ValueError):
    """A field that is missing, unknown or of another type."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def to_record(mapping: Mapping[str, Any], record: type[Record]) -> Record:
    """Return a dataclass of a JSON object, whose unknown fields are ignored.

    Raises:
        FieldError: for a missing or badly typed field.
        ValueError: what the record itself raises.
    """
    try:
        return msgspec.convert(mapping, record)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise _field_error(str(error), mapping) from None


def check_known(mapping: Mapping[str, Any], record: type[Any], prefix: str = "") -> None:
    """Check that a JSON object has no field that a dataclass lacks.

    Raises:
        FieldError: for an unknown field.
    """
    known = [item.name for item in dataclasses.fields(record)]
    for key in mapping:
        if key not in known:
            raise FieldError(f"{prefix}{key}", f"is unknown; expected one of {', '.join(known)}")


def _field_error(message: str, mapping: Mapping[str, Any]) -> FieldError:
    """Turn msgspec's message, such as "Expected `int`, got `str` - at `$.calls[1].id`", into ours."""
    problem, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$")
    if problem.startswith("Object missing required field"):
        return FieldError(f"{path}.{problem.split('`')[1]}".lstrip("."), "is missing")
    value: Any = mapping
    for name, index in _PATH.findall(path):
        value = value[name or int(index)]
    expected = problem.split("`")[1]
    return FieldError(path.lstrip("."), f"is {value!r}; expected {_JSON_TYPES.get(expected, expected)}")
