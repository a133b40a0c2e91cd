"""The recording of live traffic as program traces: counts and timings, never text.

A program stays in memory while it lives, and becomes one line when it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.recording.recorded_program import RecordedProgram, TracedCall, build_trace
from autellix_backend.gateway.recording.trace import program_to_line
from autellix_backend.observe.line_writer import LineWriter
from autellix_backend.observe.settled_call import SettledCall

MAX_PENDING = 1024
"""Ended programs that may wait for the disk; further ones are dropped and counted."""


class ProgramRecorder:
    """Appends one line per ended program to a file.

    Results are counted in the metric `autellix_recorded_programs`: written, empty (no call reached the
    engine), no_tokens (an answer without token counts), too_long (more than MAX_CALLS calls), dropped (the
    disk is too slow) or failed (it cannot be written).
    """

    def __init__(self, path: Path, registry: CollectorRegistry, *, origin_s: float) -> None:
        """Check that the file can be written; arrivals are counted from `origin_s`, on the calls' clock.

        Raises:
            SettingsError: if it cannot.
        """
        self._origin_s = origin_s
        self._results = Counter(
            "autellix_recorded_programs",
            "Ended programs that were written to the recording, or why they were not.",
            ("result",),
            registry=registry,
        )
        self._writer = LineWriter(
            path, self._line, self._results, setting="gateway.record_path", max_pending=MAX_PENDING
        )
        self._programs: dict[str, RecordedProgram] = {}
        self._running: dict[str, tuple[RecordedProgram, TracedCall]] = {}
        # Ids are unique over several recordings in one file.
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count()

    @property
    def program_count(self) -> int:
        """Return the number of programs that are kept in memory."""
        return len(self._programs)

    def open(self) -> None:
        """Start writing."""
        self._writer.open()

    def on_call_begun(self, call: OpenCall) -> None:
        """Add a call to its program."""
        program_id = call.start.program_id
        program = self._programs.get(program_id)
        if program is None:
            unique_id = f"{program_id}~{self._prefix}-{next(self._numbers)}"
            program = self._programs[program_id] = RecordedProgram(program_id, unique_id, call.began_s)
        self._running[call.start.key] = program, program.begin(call.start, call.began_s)

    def on_call_settled(self, settled: SettledCall) -> None:
        """Add the end and the tokens of a call."""
        # A call may be settled after the recording was closed.
        if (found := self._running.pop(settled.start.key, None)) is not None:
            program, call = found
            program.settle(call, settled)

    def on_program_ended(self, program_id: str) -> None:
        """Write an ended program, unless a new one with its id has begun."""
        program = self._programs.get(program_id)
        if program is not None and not program.running:
            self._finish(program)

    async def close(self) -> None:
        """Write the remaining programs, without their running calls, and wait for the disk."""
        self._running.clear()
        for program in list(self._programs.values()):
            self._finish(program)
        await asyncio.to_thread(self._writer.close)

    def _finish(self, program: RecordedProgram) -> None:
        del self._programs[program.program_id]
        if program.problem is not None:
            self._results.labels(program.problem).inc()
        elif not any(call.is_kept for call in program.calls):
            self._results.labels("empty").inc()
        else:
            self._writer.put(program)

    def _line(self, program: RecordedProgram) -> str:
        return program_to_line(build_trace(program, self._origin_s))
