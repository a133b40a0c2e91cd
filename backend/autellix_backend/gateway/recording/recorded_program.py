"""A program during its recording, and the trace of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autellix_backend.gateway.recording.trace import CallTrace, ProgramTrace
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.stores.base import CallStart

MAX_CALLS = 4096
"""Calls of one program that are kept; a program with more is left out as a whole, and counted."""
UNNAMED = "unnamed"


@dataclass(slots=True, eq=False)
class TracedCall:
    """A call of a recorded program."""

    thread: str
    start_s: float
    parents: tuple[TracedCall, ...]
    previous: TracedCall | None
    """The last call of its thread that had ended when it began; it most likely extends that prompt."""
    finish_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether it is in the trace: only if the engine's work for it is known."""
        return self.prompt_tokens > 0


@dataclass(slots=True, eq=False)
class RecordedProgram:
    """The calls of a program since it began, or the reason why it is left out of the recording."""

    program_id: str
    unique_id: str
    """Its id in the recording: a client may reuse a program's id after its end."""
    start_s: float
    name: str | None = None
    calls: list[TracedCall] = field(default_factory=list)
    by_id: dict[str, TracedCall] = field(default_factory=dict)
    ended_in_thread: dict[str, TracedCall] = field(default_factory=dict)
    running: int = 0
    problem: str | None = None
    """The reason for leaving it out."""

    def begin(self, start: CallStart, now: float) -> TracedCall:
        """Add a call, and return it."""
        self.name = self.name or start.name
        self.running += 1
        previous = self.ended_in_thread.get(start.thread_id)
        parents = self._parents(start.parents, previous)
        call = TracedCall(start.thread_id, now, parents, previous)
        if self.problem is None:
            self.calls.append(call)
            self.by_id[start.call_id] = call
            if len(self.calls) > MAX_CALLS:
                self._leave_out("too_long")
        return call

    def settle(self, call: TracedCall, settled: SettledCall) -> None:
        """Add the end and the tokens of a call."""
        self.running -= 1
        call.finish_s = settled.settled_s
        if (usage := settled.answer_usage) is not None:
            call.prompt_tokens = usage.prompt_tokens
            call.output_tokens = usage.output_tokens
            call.cached_tokens = usage.cached_tokens or 0
        if self.problem is None:
            self.ended_in_thread[call.thread] = call
            if not call.is_kept and settled.outcome is Outcome.OK:
                self._leave_out("no_tokens")

    def _leave_out(self, problem: str) -> None:
        # The entry stays until the program ends, so that the program is counted once.
        self.problem = problem
        self.calls.clear()
        self.by_id.clear()
        self.ended_in_thread.clear()

    def _parents(
        self, parent_ids: tuple[str, ...] | None, previous: TracedCall | None
    ) -> tuple[TracedCall, ...]:
        """Return the parents of a new call: those it names, else the last call of its thread."""
        if parent_ids == ():
            return ()
        named = tuple(self.by_id[parent] for parent in parent_ids or () if parent in self.by_id)
        return named or (() if previous is None else (previous,))


def build_trace(program: RecordedProgram, origin_s: float) -> ProgramTrace:
    """Return the trace of a program; arrivals are counted from `origin_s`."""
    numbers: dict[TracedCall, int] = {}
    for call in program.calls:
        if call.is_kept:
            numbers[call] = len(numbers)
    return ProgramTrace(
        source=program.name or UNNAMED,
        program_id=program.unique_id,
        arrival_s=max(0.0, program.start_s - origin_s),
        calls=tuple(_call_trace(call, numbers, program.start_s) for call in numbers),
    )


def _call_trace(call: TracedCall, numbers: dict[TracedCall, int], start_s: float) -> CallTrace:
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


def _kept(calls: Iterable[TracedCall]) -> Iterator[TracedCall]:
    """Iterate over calls, with the nearest kept ancestors in place of those that are not in the trace."""
    waiting = list(calls)
    seen: set[TracedCall] = set()
    while waiting:
        call = waiting.pop(0)
        if call in seen:
            continue
        seen.add(call)
        if call.is_kept:
            yield call
        else:
            waiting.extend(call.parents)
