"""Turns text and TOML values into the types of the settings' fields."""

from __future__ import annotations

import math
import shlex
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autellix_backend.settings.base import SettingsError


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value and the place it was given in, for messages."""

    value: object
    source: str


def convert(name: str, given: Given, hint: Any) -> object:
    """Turn text (environment, command line) or a TOML value into the field's type."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if given.value is None and types.NoneType in options:
        return None
    target = next(option for option in options if option is not types.NoneType)
    try:
        return _converter(target)(given.value)
    except (ValueError, TypeError, KeyError):
        raise SettingsError(name, f"is {given.value!r}", _describe(target), given.source) from None


def _converter(target: Any) -> Callable[[Any], object]:
    if typing.get_origin(target) is tuple:
        item = typing.get_args(target)[0]
        return _words if item is str else lambda value: tuple(_to_float(part) for part in _parts(value))
    return {int: _to_int, float: _to_float, bool: _to_bool, Path: _to_path, str: _to_str}[target]


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, str):
        return [part for part in value.replace(",", " ").split(" ") if part]
    if isinstance(value, list | tuple):
        return value
    raise TypeError


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise TypeError


def _to_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[str(value).lower()]


def _to_path(value: object) -> Path:
    return Path(_to_str(value)).expanduser()


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _describe(target: Any) -> str:
    if typing.get_origin(target) is tuple:
        of_words = typing.get_args(target)[0] is str
        return "a list of words" if of_words else "a list of numbers such as 0.1,0.4,1.6"
    names = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "text"}
    return names[target]
