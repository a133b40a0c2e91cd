"""The sizes of programs by class, learned from the beginnings of their calls and from their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autellix_backend.core.classes import (
    LEAST_SCORED,
    MARGIN,
    ClassKey,
    ClassReport,
    ClassSizes,
    ObservedProgram,
)
from autellix_backend.stores.base import CLASS_SEPARATOR, CallStart, Inherited, ProgramEnd


def class_id(tenant: str, name: str) -> str:
    """Return the id of a tenant's class in the process table; no tenant's name holds a slash."""
    return f"{tenant}{CLASS_SEPARATOR}{name}"


class ProgramClasses:
    """Follows the live programs and predicts their work; a tenant's programs teach only its own classes."""

    def __init__(self) -> None:
        self._sizes = ClassSizes()
        self._live: dict[str, ObservedProgram] = {}

    def __len__(self) -> int:
        """Return the number of live programs."""
        return len(self._live)

    def __contains__(self, program_id: object) -> bool:
        """Return whether the class of a program is known."""
        return program_id in self._live

    def on_call_begun(self, start: CallStart, inherited: Inherited) -> None:
        """Follow a program from its first call here on."""
        program = self._live.get(start.program_id)
        if program is None and start.class_id is not None:
            program = _observed_program(start.class_id, start.prompt_tokens)
            self._live[start.program_id] = program
        if program is not None:
            self._sizes.on_call(
                program, finished_calls=inherited.finished_calls, attained_work=inherited.work
            )

    def on_program_ended(self, end: ProgramEnd) -> None:
        """Learn from a program that has ended, here or at another gateway."""
        program = self._live.pop(end.program_id, None)
        if program is None and end.class_id is not None:
            program = _observed_program(end.class_id, end.first_prompt_tokens)
            self._sizes.on_call(program, finished_calls=0, attained_work=0.0)
        if program is not None:
            self._sizes.on_end(program, end.work)

    def class_of(self, program_id: str) -> str:
        """Return the id of a program's class, empty for an unknown program."""
        program = self._live.get(program_id)
        return "" if program is None else class_id(program.key.tenant, program.key.name)

    def spread(self, tenant: str) -> float | None:
        """Return the standard deviation of ln(work) over a tenant's latest ended programs, None at first."""
        return self._sizes.spread(tenant)

    def reports(self, tenant: str | None = None) -> Iterator[ClassReport]:
        """Yield a report of each class of one tenant, or of all."""
        return self._sizes.reports(tenant)

    def states(self) -> dict[str, int]:
        """Return how many classes predict sizes well, do not, or have just changed."""
        states = Counter(_state(report) for report in self.reports())
        return {state: states[state] for state in ("predicted", "unpredicted", "drifting")}


def _state(report: ClassReport) -> str:
    if report.is_drifting:
        return "drifting"
    return "predicted" if any(error.is_predicted for error in report.errors) else "unpredicted"


def verdict(report: ClassReport) -> str:
    """Return whether a class is predicted well, and why not."""
    calls = [str(error.call) for error in report.errors if error.is_predicted]
    if calls:
        return f"predicted at {'call' if len(calls) == 1 else 'calls'} {', '.join(calls)}"
    first = report.errors[0]
    scored = f"{first.scored} of {LEAST_SCORED} predictions scored"
    if report.is_drifting:
        return f"unpredicted: its sizes have changed, {scored} since"
    if first.error is None or first.scored < LEAST_SCORED:
        return f"unpredicted: {scored}"
    return f"unpredicted: error {first.error:.2f}, expected below {MARGIN * report.spread:.2f}"


def _observed_program(id_: str, first_prompt_tokens: int) -> ObservedProgram:
    tenant, _, name = id_.partition(CLASS_SEPARATOR)
    return ObservedProgram(ClassKey(tenant, name), first_prompt_tokens)
