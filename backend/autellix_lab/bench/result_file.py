"""Replay results as JSON files with everything that a comparison needs, checked when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from autellix_backend.errors import CommandError
from autellix_lab.bench.metrics import ProgramOutcome, metrics_of, outcomes
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.schema import FieldError, to_record
from autellix_lab.workload.statistics import mean_of
from autellix_lab.workload.trace import ProgramTrace

KIND = "autellix-replay"
VERSION = 2


class ResultFileError(CommandError, ValueError):
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


def join_rounds(results: Sequence[ReplayResult]) -> ReplayResult:
    """Return the results of several rounds of the same programs as one, with the mean of their durations."""
    if len(results) == 1:
        return results[0]
    rounds = list(enumerate(results, start=1))
    return ReplayResult(
        setting={**results[0].setting, "rounds": len(results)},
        programs=sum(result.programs for result in results),
        calls=sum(result.calls for result in results),
        lost_calls=sum(result.lost_calls for result in results),
        calls_without_report=sum(result.calls_without_report for result in results),
        duration_s=mean_of([result.duration_s for result in results]),
        errors=tuple(dict.fromkeys(error for result in results for error in result.errors)),
        outcomes=tuple(
            dataclasses.replace(outcome, program=f"{outcome.program}, round {number}")
            for number, result in rounds
            for outcome in result.outcomes
        ),
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
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ResultFileError(path, "file", f"cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ResultFileError(path, "file", f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ResultFileError(path, "kind", f"is not {KIND!r}; expected a file of `autellix bench replay`")
    if document.get("version") != VERSION:
        raise ResultFileError(path, "version", f"is {document.get('version')!r}; expected {VERSION}")
    try:
        return to_record(document, ReplayResult)
    except FieldError as error:
        raise ResultFileError(path, error.field, error.problem) from None
