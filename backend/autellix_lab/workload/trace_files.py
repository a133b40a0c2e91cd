"""Files of program traces: a reader that checks every line, and a writer."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from autellix_lab.workload.schema import FieldError, check_known, to_record
from autellix_lab.workload.trace import CallTrace, ProgramTrace, TraceError, program_to_line


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
    try:
        check_known(mapping, ProgramTrace)
        program = to_record(mapping, ProgramTrace)
        for index, call in enumerate(mapping["calls"]):
            check_known(call, CallTrace, f"calls[{index}].")
    except FieldError as error:
        raise TraceError(error.field, error.problem) from None
    return program


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
