"""The recording of live traffic as program traces: counts and timings, never text.

A program is kept in memory while it lives, and written as one line when it ends. A thread of its own writes,
so that a slow disk delays no call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.gateway.calls.open_call import OpenCall
from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace, program_to_line
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.settings import SettingsError

MAX_CALLS = 4096
"""Calls of one program that are kept; a program with more is left out and counted, never cut short."""
MAX_PENDING = 1024
"""Ended programs that may be queued for the disk; further ones are left out and counted."""
UNNAMED = "unnamed"

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _RecordedCall:
    call_id: str
    thread: str
    start_s: float
    parents: tuple[_RecordedCall, ...]
    previous: _RecordedCall | None
    """The last call of its thread that had ended when it began, whose prompt it most likely extends."""
    finish_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    is_kept: bool = False
    """Whether it is in the trace: only if the engine's work for it is known."""


@dataclass(slots=True, eq=False)
class _RecordedProgram:
    program_id: str
    number: int
    start_s: float
    name: str | None = None
    calls: list[_RecordedCall] = field(default_factory=list)
    by_id: dict[str, _RecordedCall] = field(default_factory=dict)
    ended_in_thread: dict[str, _RecordedCall] = field(default_factory=dict)
    running: int = 0
    problem: str | None = None
    """The reason for leaving it out."""

    def leave_out(self, problem: str) -> None:
        """Drop its calls; the entry stays until the program ends, so that it is counted once."""
        self.problem = problem
        self.calls.clear()
        self.by_id.clear()
        self.ended_in_thread.clear()


class ProgramRecorder:
    """Appends one line per ended program to a file.

    Results are counted in the metric `autellix_recorded_programs`: written, empty (no call reached the
    engine), no_tokens (an answer without token counts), too_long (more than MAX_CALLS calls), dropped (the
    disk is too slow) or failed (it cannot be written).
    """

    def __init__(self, path: Path, registry: CollectorRegistry, *, origin_s: float) -> None:
        """Check that the file can be written.

        Args:
            path: The file; lines are appended.
            registry: The registry of the metric.
            origin_s: The moment that arrivals are counted from, on the clock of the calls.

        Raises:
            SettingsError: if the file cannot be written.
        """
        self._path = path
        self._origin_s = origin_s
        self._results = Counter(
            "autellix_recorded_programs",
            "Ended programs that were written to the recording, or why they were not.",
            ("result",),
            registry=registry,
        )
        self._programs: dict[str, _RecordedProgram] = {}
        self._running: dict[str, tuple[_RecordedProgram, _RecordedCall]] = {}
        # A client may reuse a program id after its end or in the next recording; ids in a file are unique.
        self._prefix = secrets.token_hex(3)
        self._count = 0
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="autellix-record")
        self._room = threading.BoundedSemaphore(MAX_PENDING)
        self._has_complained = False
        check_writable(path)

    @property
    def program_count(self) -> int:
        """Return the number of programs that are kept in memory."""
        return len(self._programs)

    def on_call_begun(self, call: OpenCall) -> None:
        """Add a call to its program."""
        start = call.start
        program = self._program(start.program_id, call.began_s)
        program.name = program.name or start.name
        program.running += 1
        previous = program.ended_in_thread.get(start.thread_id)
        entry = _RecordedCall(
            call_id=start.call_id,
            thread=start.thread_id,
            start_s=call.began_s,
            parents=_parents(program, start.parents, previous),
            previous=previous,
        )
        self._running[start.key] = (program, entry)
        if program.problem is None:
            program.calls.append(entry)
            program.by_id[start.call_id] = entry
            if len(program.calls) > MAX_CALLS:
                program.leave_out("too_long")

    def on_call_settled(self, settled: SettledCall) -> None:
        """Complete a call with its end and its tokens."""
        found = self._running.pop(settled.start.key, None)
        if found is None:
            # It outlived the recording.
            return
        program, entry = found
        entry.finish_s = settled.settled_s
        program.running -= 1
        if (usage := settled.answer_usage) is not None:
            entry.prompt_tokens = usage.prompt_tokens
            entry.output_tokens = usage.output_tokens
            entry.cached_tokens = usage.cached_tokens or 0
        entry.is_kept = entry.prompt_tokens > 0
        if program.problem is None:
            program.ended_in_thread[entry.thread] = entry
            if not entry.is_kept and settled.outcome == Outcome.OK:
                program.leave_out("no_tokens")

    def on_program_ended(self, program_id: str) -> None:
        """Write a program, unless another one of its id has begun meanwhile."""
        program = self._programs.get(program_id)
        if program is not None and not program.running:
            self._finish(program)

    async def close(self) -> None:
        """Write the remaining programs, without their running calls, and wait for the disk."""
        self._running.clear()
        for program in list(self._programs.values()):
            self._finish(program)
        await asyncio.to_thread(self._writer.shutdown)

    def _program(self, program_id: str, now: float) -> _RecordedProgram:
        program = self._programs.get(program_id)
        if program is None:
            program = _RecordedProgram(program_id, self._count, now)
            self._programs[program_id] = program
            self._count += 1
        return program

    def _finish(self, program: _RecordedProgram) -> None:
        del self._programs[program.program_id]
        if program.problem is not None:
            self._results.labels(program.problem).inc()
        elif not any(call.is_kept for call in program.calls):
            self._results.labels("empty").inc()
        elif self._room.acquire(blocking=False):
            self._writer.submit(self._write, program)
        else:
            self._results.labels("dropped").inc()

    def _write(self, program: _RecordedProgram) -> None:
        """Write one program; runs in the writer's thread."""
        try:
            trace = _trace(program, self._origin_s, f"{program.program_id}~{self._prefix}-{program.number}")
            line = program_to_line(trace)
            append_line(self._path, line.encode())
            self._results.labels("written").inc()
        except Exception as error:
            # A thread's boundary: no failure may stop the recording or the serving.
            self._results.labels("failed").inc()
            if not self._has_complained:
                self._has_complained = True
                logger.exception("cannot record to %s (%s); serving goes on", self._path, error)
        finally:
            self._room.release()


def check_writable(path: Path) -> None:
    """Check that lines can be appended to the file.

    Raises:
        SettingsError: if they cannot.
    """
    try:
        path.open("ab").close()
    except OSError as error:
        raise SettingsError(
            "gateway.record_path", f"cannot write {path} ({error.strerror})", "a file that can be written"
        ) from error


def append_line(path: Path, line: bytes) -> None:
    """Append a line wholly or not at all.

    Raises:
        OSError: if it cannot be written; a partial line is removed.
    """
    with path.open("ab", buffering=0) as file:
        size_bytes = file.seek(0, 2)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "no space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size_bytes)
            raise


def _parents(
    program: _RecordedProgram, parent_ids: tuple[str, ...] | None, previous: _RecordedCall | None
) -> tuple[_RecordedCall, ...]:
    """Return the parents of a new call: those it names, else the last call of its thread."""
    if parent_ids == ():
        return ()
    named = tuple(program.by_id[parent] for parent in parent_ids or () if parent in program.by_id)
    return named or (() if previous is None else (previous,))


def _trace(program: _RecordedProgram, origin_s: float, unique_id: str) -> ProgramTrace:
    numbers: dict[_RecordedCall, int] = {}
    for call in program.calls:
        if call.is_kept:
            numbers[call] = len(numbers)
    return ProgramTrace(
        source=program.name or UNNAMED,
        program_id=unique_id,
        arrival_s=max(0.0, program.start_s - origin_s),
        calls=tuple(_call_trace(call, numbers, program.start_s) for call in numbers),
    )


def _call_trace(call: _RecordedCall, numbers: dict[_RecordedCall, int], start_s: float) -> CallTrace:
    parents = list(dict.fromkeys(_kept(call.parents)))
    ready_s = max((parent.finish_s for parent in parents), default=start_s)
    shared_tokens, prefix = 0, None
    extended = next(_kept(() if call.previous is None else (call.previous,)), None)
    extended = extended or max(parents, key=lambda parent: parent.finish_s, default=None)
    if extended is not None and call.cached_tokens > 0:
        longest = extended.prompt_tokens + extended.output_tokens
        shared_tokens, prefix = min(call.cached_tokens, longest, call.prompt_tokens), numbers[extended]
    return CallTrace(
        id=numbers[call],
        parents=tuple(sorted(numbers[parent] for parent in parents)),
        thread=call.thread,
        prefill_tokens=call.prompt_tokens,
        decode_tokens=call.output_tokens,
        shared_prefix_tokens=shared_tokens,
        prefix_from=prefix,
        gap_before_s=max(0.0, call.start_s - ready_s),
        kind="chain" if parents else "root",
        start_s=call.start_s - start_s,
        latency_s=call.finish_s - call.start_s,
    )


def _kept(calls: Iterable[_RecordedCall]) -> Iterator[_RecordedCall]:
    """Iterate over calls, replacing those that are not in the trace by their nearest kept ancestors."""
    waiting = list(calls)
    seen: set[_RecordedCall] = set()
    while waiting:
        call = waiting.pop(0)
        if call in seen:
            continue
        seen.add(call)
        if call.is_kept:
            yield call
        else:
            waiting.extend(call.parents)
