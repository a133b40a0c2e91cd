"""What makes a class a section of settings: frozen, and checked by pydantic when it is built."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from autellix_backend.environment import SettingsError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def section(name: str) -> Callable[[type[T]], type[T]]:
    """Make a class a section of this name, whose constructor raises a SettingsError with every problem."""

    def make(declared: type[T]) -> type[T]:
        config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
        made: Any = dataclass(frozen=True, slots=True, kw_only=True, config=config)(declared)
        build = made.__init__

        @functools.wraps(build)
        def init(self: T, **values: object) -> None:
            try:
                build(self, **values)
            except ValidationError as error:
                raise SettingsError.of_all(list(problems_in(error, name))) from None

        made.__init__ = init
        found: type[T] = made
        return found

    return make


def problems_in(error: ValidationError, where: str) -> Iterator[SettingsError]:
    """Return each problem that pydantic found, with the name of its field below `where`."""
    for found in error.errors():
        place, value = found["loc"], found["input"]
        message = found["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        message = message.replace("String should have", "a text of")
        if not place:
            # A rule over several fields, of the scheduler's configuration: its first word is the field.
            key, _, message = message.partition(" ")
            yield SettingsError(f"{where}.{key}", message)
            continue
        name = f"{where}.{place[0]}"
        if found["type"] == "unexpected_keyword_argument":
            yield SettingsError(name, "is unknown")
            continue
        # The value may hold a secret: a key, or a password in an address.
        is_secret = any(mark in str(value) for mark in ("@", "password")) or "secret" in name or "key" in name
        problem = "cannot be used" if is_secret else "is empty" if value == "" else f"is {value!r}"
        yield SettingsError(name, problem, message)
