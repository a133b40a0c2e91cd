"""The fields of a section: their rules, their texts and the conversion of their values."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import shlex
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from autellix_backend.settings.base import SettingsError
from autellix_backend.settings.secrets import is_http_url, without_password

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values of its type a setting accepts; lists are checked item by item."""

    expected: str
    holds: Callable[[Any], bool]
    shown: Callable[[Any], object] | None = None
    """Returns a value with its secret hidden; of a list, item by item."""
    shows_whole: bool = False
    """Whether `shown` takes a whole list, because an item can make the next one a secret."""

    def check(self, name: str, value: object) -> None:
        """Raise a SettingsError of the field `name` if the value breaks the rule."""
        if not self.holds(value):
            shown = repr(value) if isinstance(value, str) else value
            problem = "is empty" if value == "" else f"is {shown}"
            is_secret = self.shown is not None and (self.shown(value) != value or "@" in str(value))
            raise SettingsError(name, "cannot be used" if is_secret else problem, self.expected)


POSITIVE = Rule("a number above zero", lambda value: value > 0)
NON_NEGATIVE = Rule("a number of zero or more", lambda value: value >= 0)
HTTP_URL = Rule("an http:// or https:// address", is_http_url, shown=without_password)


def between(low: int, high: int) -> Rule:
    """Return the rule of a range, bounds included."""
    return Rule(f"{low} to {high}", lambda value: low <= value <= high)


def one_of(names: Sequence[str]) -> Rule:
    """Return the rule of an enumeration."""
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def matches(pattern: str, expected: str, shown: Callable[[Any], object] | None = None) -> Rule:
    """Return the rule of a regular expression for the whole text."""
    return Rule(expected, lambda text: re.fullmatch(pattern, text) is not None, shown)


def _read_once(read: Callable[[type[Any]], T]) -> Callable[[type[Any]], T]:
    """Keep what is read of a section; mypy takes no class for an argument of `functools.cache`."""
    return typing.cast(Callable[[type[Any]], T], functools.cache(read))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A frozen group of settings that checks its rules when it is built."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for name, rule in rules_of(type(self)).items():
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else () if value is None else (value,):
                rule.check(f"{self.section}.{name}", item)


@_read_once
def types_of(section: type[Any]) -> Mapping[str, Any]:
    """Return the types of a section's settings, without their rules."""
    return {name: hint for name, hint in typing.get_type_hints(section).items() if name != "section"}


@_read_once
def rules_of(section: type[Any]) -> Mapping[str, Rule]:
    """Return the rules of a section's settings, where they have one."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {name: rule for name, hint in hints.items() if (rule := _rule_in(hint)) is not None}


@_read_once
def texts_of(section: type[Any]) -> Mapping[str, str]:
    """Return the meanings of a section's settings, in Markdown: the docstrings of its fields."""
    tree = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        declared.target.id: " ".join(text.value.value.split())
        for declared, text in itertools.pairwise(tree.body)
        if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


def _rule_in(hint: Any) -> Rule | None:
    parts = getattr(hint, "__metadata__", None) or typing.get_args(hint)
    found = (item if isinstance(item, Rule) else _rule_in(item) for item in parts)
    return next(filter(None, found), None)


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value as written, and its source, for messages."""

    value: object
    source: str


def convert(name: str, raw: RawValue, hint: Any) -> object:
    """Convert text or a TOML value to a field's type.

    Raises:
        SettingsError: naming the field, the source, and what was expected.
    """
    kind = _required_type(hint)
    try:
        value = msgspec.convert(_split(raw.value, kind), hint, strict=False, dec_hook=_decode)
    except (msgspec.ValidationError, ValueError):
        raise SettingsError(name, f"is {raw.value!r}", describe_type(hint), raw.source) from None
    if any(item != item for item in (value if isinstance(value, tuple) else (value,))):  # NaN
        raise SettingsError(name, f"is {raw.value!r}", describe_type(hint), raw.source)
    return value


def describe_type(hint: Any) -> str:
    """Return a field's type in words."""
    return _TYPE_NAMES[_required_type(hint)]


_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    str: "text",
    tuple[str, ...]: "a list of words",
    tuple[float, ...]: "a list of numbers such as 0.1,0.4,1.6",
}


def _required_type(hint: Any) -> Any:
    """Return the type of an optional field's values."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return next(kind for kind in (typing.get_args(hint) if is_union else (hint,)) if kind is not type(None))


def _split(value: object, kind: Any) -> object:
    if isinstance(value, str) and kind == tuple[str, ...]:
        return shlex.split(value)
    if isinstance(value, str) and kind == tuple[float, ...]:
        return value.replace(",", " ").split()
    return value


def _decode(kind: type[Any], value: Any) -> object:
    """Build the one type that msgspec does not know."""
    assert kind is Path
    if not isinstance(value, str):
        raise ValueError
    return Path(value).expanduser()
