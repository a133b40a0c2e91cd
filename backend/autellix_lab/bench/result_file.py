"""Replay results as JSON files with everything that a comparison needs, checked when read."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autellix_lab.bench.metrics import ProgramOutcome, metrics_of, outcomes
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import ProgramTrace

KIND = "autellix-replay"
VERSION = 2


class ResultFileError(ValueError):
    """A result file that cannot be used; names the file and the field, and what was expected."""

    def __init__(self, path: Path, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field} {problem}")
        self.path = path
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One replay: its setting, and the outcomes of its programs."""

    setting: Mapping[str, Any]
    """The trace, endpoint and options, as plain JSON values."""
    programs: int
    """Programs played; those without a lost call have an outcome."""
    calls: int
    lost_calls: int
    calls_without_report: int
    """Answered calls without an engine report."""
    duration_s: float
    """From the start of the run to the last answer."""
    errors: tuple[str, ...]
    outcomes: tuple[ProgramOutcome, ...]


def make_result(
    setting: Mapping[str, Any],
    programs: Sequence[ProgramTrace],
    arrivals_s: Sequence[float],
    results: Sequence[CallResult],
) -> ReplayResult:
    """Reduce a run's calls to its result."""
    answered = [result for result in results if result.error is None]
    errors = [result.error for result in results if result.error is not None]
    return ReplayResult(
        setting=setting,
        programs=len(programs),
        calls=len(results),
        lost_calls=len(errors),
        calls_without_report=sum(not result.has_engine_report for result in answered),
        duration_s=max((result.finish_s for result in answered), default=0.0),
        errors=tuple(dict.fromkeys(errors))[:5],
        outcomes=tuple(outcomes(programs, arrivals_s, results)),
    )


def result_to_json(result: ReplayResult) -> dict[str, Any]:
    """Return the JSON object of a result. Its statistics are for other readers; read_result ignores them."""
    return {
        "kind": KIND,
        "version": VERSION,
        **dataclasses.asdict(result),
        "metrics": metrics_of(result.outcomes),
    }


def read_result(path: Path) -> ReplayResult:
    """Read a result file.

    Raises:
        ResultFileError: if it cannot be read, is of another kind, or a field is missing or malformed.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(path, "file", f"cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ResultFileError(path, "file", f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ResultFileError(path, "kind", f"is not {KIND!r}; expected a file of `autellix bench replay`")
    if document.get("version") != VERSION:
        raise ResultFileError(path, "version", f"is {document.get('version')!r}; expected {VERSION}")
    fields = _fields(path, ReplayResult, document, "")
    items = fields["outcomes"]
    found = tuple(_outcome(path, item, f"outcomes[{index}]") for index, item in enumerate(items))
    return ReplayResult(**{**fields, "outcomes": found, "errors": tuple(map(str, fields["errors"]))})


def _outcome(path: Path, item: object, where: str) -> ProgramOutcome:
    if not isinstance(item, dict):
        raise ResultFileError(path, where, "is not an object")
    return ProgramOutcome(**_fields(path, ProgramOutcome, item, where + "."))


def _fields(path: Path, record: type[Any], mapping: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the record's fields from the mapping, each checked for its type; others are ignored."""
    hints = typing.get_type_hints(record)
    found: dict[str, Any] = {}
    for item in dataclasses.fields(record):
        if item.name not in mapping:
            raise ResultFileError(path, prefix + item.name, "is missing")
        value, expected = mapping[item.name], _expected(hints[item.name])
        if not _is_one_of(value, expected):
            names = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in expected)
            raise ResultFileError(path, prefix + item.name, f"is {_shown(value)}; expected {names}")
        found[item.name] = value
    return found


def _expected(hint: Any) -> tuple[type[Any], ...]:
    """Return the types that JSON has for a field's type."""
    if isinstance(hint, types.UnionType):
        return typing.get_args(hint)
    origin = typing.get_origin(hint) or hint
    return ({Mapping: dict, tuple: list}.get(origin, origin),)


def _is_one_of(value: object, expected: tuple[type[Any], ...]) -> bool:
    # By exact type: to Python, true is an int. JSON may write a float without its point.
    kind = float if type(value) is int and int not in expected else type(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return kind in expected and (not is_number or (math.isfinite(value) and value >= 0))  # type: ignore[arg-type, operator]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
