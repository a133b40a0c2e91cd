"""Files of program traces: a reader that checks every line, and a writer."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError, program_to_line

_PROGRAM_FIELDS = tuple(item.name for item in fields(ProgramTrace))
_CALL_FIELDS = tuple(item.name for item in fields(CallTrace))
_JSON_TYPES = {"array": "a list", "object": "an object"}
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_traces(path: Path) -> list[ProgramTrace]:
    """Read a .jsonl or .jsonl.gz file of program traces.

    Raises:
        TraceError: for a file that cannot be read or a line that breaks the schema.
    """
    return list(_read_lines(path))


def read_programs(path: Path) -> list[ProgramTrace]:
    """Read a file of program traces that are to be played.

    Raises:
        TraceError: as read_traces(), or if there is no program.
    """
    return not_empty(read_traces(path), path)


def not_empty(programs: list[ProgramTrace], source: object) -> list[ProgramTrace]:
    """Return a source's programs.

    Raises:
        TraceError: if there is none.
    """
    if not programs:
        raise TraceError(str(source), "holds no program")
    return programs


def write_traces(path: Path, programs: Iterable[ProgramTrace]) -> None:
    """Write programs as JSON lines, compressed if the name ends in .gz."""
    with _open(path, "wt") as file:
        for program in programs:
            file.write(program_to_line(program))


def program_from_mapping(mapping: Mapping[str, Any]) -> ProgramTrace:
    """Build a program from the JSON object of its line.

    Raises:
        TraceError: for a missing, unknown or badly typed field, or a call that breaks the DAG's rules.
    """
    _check_known(mapping, _PROGRAM_FIELDS, "")
    try:
        program = msgspec.convert(mapping, ProgramTrace)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TraceError):
            raise error.__cause__ from None
        raise _schema_error(str(error), mapping) from None
    for index, call in enumerate(mapping["calls"]):
        _check_known(call, _CALL_FIELDS, f"calls[{index}].")
    return program


def _check_known(mapping: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in mapping:
        if key not in known:
            raise TraceError(f"{prefix}{key}", f"is unknown; expected one of {', '.join(known)}")


def _schema_error(message: str, mapping: Mapping[str, Any]) -> TraceError:
    """Turn msgspec's message, such as "Expected `int`, got `str` - at `$.calls[1].id`", into ours."""
    problem, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$")
    if problem.startswith("Object missing required field"):
        return TraceError(f"{path}.{problem.split('`')[1]}".lstrip("."), "is missing")
    steps = (name or int(index) for name, index in _PATH.findall(path))
    value: Any = mapping
    for step in steps:
        value = value[step]
    expected = problem.split("`")[1]
    return TraceError(path.lstrip("."), f"is {value!r}; expected {_JSON_TYPES.get(expected, expected)}")


def _read_lines(path: Path) -> Iterator[ProgramTrace]:
    try:
        with _open(path, "rt") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _read_line(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(str(path), f"cannot be read: {error}") from error


def _open(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, mode, encoding="utf-8")
    return path.open(mode, encoding="utf-8")


def _read_line(line: str, where: str) -> ProgramTrace:
    try:
        mapping = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError("line", f"is not JSON: {error}", where) from error
    if not isinstance(mapping, dict):
        raise TraceError("line", "is not a JSON object", where)
    try:
        return program_from_mapping(mapping)
    except TraceError as error:
        raise error.at(where) from error
