"""The parts of every loader: records with their place in the file, and typed access to their fields."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autellix_lab.workload.tokens import ESTIMATE, CountTokens, estimate_tokens
from autellix_lab.workload.trace import ProgramTrace, TraceError

Value = TypeVar("Value")

EXPECTED = {str: "a string", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of loaders beside the file."""

    count_tokens: CountTokens = estimate_tokens
    tokenizer: str = ESTIMATE
    """Name of the count, kept in the traces."""


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a file, with its place."""

    values: Mapping[str, Any]
    where: str
    path: str = ""
    """Field that holds the object, as `requests[3].`; empty for the outermost."""

    def error(self, field: str, problem: str) -> TraceError:
        """Return an error about one of the object's fields."""
        return TraceError(f"{self.path}{field}", problem, self.where)

    def get(self, field: str, kind: type[Value]) -> Value:
        """Return a field of the given type.

        Raises:
            TraceError: if it is missing or of another type.
        """
        if field not in self.values:
            raise self.error(field, f"is missing; expected {EXPECTED[kind]}")
        return self._typed(field, self.values[field], kind)

    def find(self, field: str, kind: type[Value]) -> Value | None:
        """Return a field of the given type, or None where it is missing or null.

        Raises:
            TraceError: if it is of another type.
        """
        value = self.values.get(field)
        return None if value is None else self._typed(field, value, kind)

    def count(self, field: str) -> int:
        """Return a field that is a whole number of zero or more.

        Raises:
            TraceError: if it is not.
        """
        value = self.get(field, int)
        if value < 0:
            raise self.error(field, f"is {value}; expected zero or more")
        return value

    def records(self, field: str) -> list[Record]:
        """Return a field that is a list of objects.

        Raises:
            TraceError: if it is not.
        """
        return [self._record(f"{field}[{i}]", item) for i, item in enumerate(self.get(field, list))]

    def names(self, field: str) -> list[str]:
        """Return a field that is a list of strings, empty where it is missing or null.

        Raises:
            TraceError: if it is not.
        """
        found = self.find(field, list) or []
        for item in found:
            if type(item) is not str:
                raise self.error(field, f"holds {item!r}; expected strings")
        return found

    def numbers(self, field: str) -> list[int]:
        """Return a field that is a list of whole numbers.

        Raises:
            TraceError: if it is not.
        """
        found = self.get(field, list)
        for item in found:
            if type(item) is not int:
                raise self.error(field, f"holds {item!r}; expected whole numbers")
        return found

    def program(self, **fields: Any) -> ProgramTrace:
        """Build the program of this object.

        Raises:
            TraceError: if a rule of the schema is broken, at the place of this object.
        """
        try:
            return ProgramTrace(**fields)
        except TraceError as error:
            raise error.at(self.where) from error

    def _record(self, field: str, item: object) -> Record:
        if not isinstance(item, dict):
            raise self.error(field, f"is {item!r}; expected an object")
        return Record(item, self.where, f"{self.path}{field}.")

    def _typed(self, field: str, value: object, kind: type[Value]) -> Value:
        # By exact type: to Python, true is an int.
        if kind is float and type(value) is int:
            value = float(value)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if type(value) is not kind or not is_finite:
            raise self.error(field, f"is {value!r}; expected {EXPECTED[kind]}")
        return value


def read_text(path: Path) -> str:
    """Read a text file, unpacking it if its name ends in .gz.

    Raises:
        TraceError: if it cannot be read.
    """
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(str(path), f"cannot be read: {error}") from error


def read_json(path: Path) -> object:
    """Read a file that is one JSON value.

    Raises:
        TraceError: if it cannot be read or is not JSON.
    """
    return _parse(read_text(path), str(path), "file")


def read_json_lines(path: Path) -> Iterator[Record]:
    """Read a file with one JSON object a line; empty lines are skipped.

    Raises:
        TraceError: if it cannot be read, or a line is not a JSON object.
    """
    # Not splitlines: JSON strings may hold other line separators.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield as_record(_parse(line, where, "line"), where, "line")


def as_record(value: object, where: str, field: str) -> Record:
    """Return a JSON value as a record.

    Raises:
        TraceError: if it is not an object.
    """
    if not isinstance(value, dict):
        raise TraceError(field, "is not a JSON object", where)
    return Record(value, where)


def _parse(text: str, where: str, field: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(field, f"is not JSON: {error}", where) from error
