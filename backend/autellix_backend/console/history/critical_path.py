"""A program's critical path, and what its duration was spent on along it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from autellix_backend.console.history.history import PastProgram
from autellix_backend.observe.durations import seconds
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import WORDS, ProgramState


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A program's duration (s) by what it was spent on, along its critical path; the parts add up to it."""

    inactive_s: float
    """Waiting for KV memory while the program was inactive."""
    queue_s: float
    """Other waiting: for a batch slot or an engine."""
    engine_s: float
    """Calls in their engine, network time included."""
    tools_s: float
    """Time between calls in tools that the client reported."""
    client_s: float
    """Other time between calls."""
    critical_path: tuple[str, ...]
    """The ids of its calls, in order."""

    @property
    def parts_s(self) -> dict[str, float]:
        """The parts by their names."""
        return {
            "inactive": self.inactive_s,
            "queue": self.queue_s,
            "engine": self.engine_s,
            "tools": self.tools_s,
            "client": self.client_s,
        }


def spent(program: PastProgram) -> Spent:
    """Return where the time of a program went.

    The critical path is followed backwards from the last answer. The predecessor of a call is the one of its
    parents (else of its thread's earlier calls, else of all) that was answered last before it arrived.
    """
    path = critical_path(program.calls)
    inactive_s = queue_s = engine_s = tools_s = client_s = 0.0
    clock_s = program.start_s
    for call in path:
        gap_s = max(0.0, call.began_s - clock_s)
        in_tools_s = min(gap_s, sum(tool_s for _, tool_s in call.start.interceptions))
        tools_s += in_tools_s
        client_s += gap_s - in_tools_s
        duration_s = call.settled_s - max(clock_s, call.began_s)
        waited_s = min(duration_s, call.receipt.wait_s)
        of_memory_s = min(waited_s, call.receipt.inactive_s)
        inactive_s += of_memory_s
        queue_s += waited_s - of_memory_s
        engine_s += duration_s - waited_s
        clock_s = call.settled_s
    return Spent(
        inactive_s=inactive_s,
        queue_s=queue_s,
        engine_s=engine_s,
        tools_s=tools_s,
        client_s=client_s,
        critical_path=tuple(call.start.call_id for call in path),
    )


def critical_path(calls: Iterable[SettledCall]) -> list[SettledCall]:
    """Return the chain of calls that ended with the last answer, the first call first."""
    by_end = sorted(calls, key=attrgetter("settled_s"))
    by_id = {call.start.call_id: call for call in by_end}
    by_thread: dict[str, list[SettledCall]] = {}
    for call in by_end:
        by_thread.setdefault(call.start.thread_id, []).append(call)
    path: list[SettledCall] = []
    seen: set[str] = set()
    following = by_end[-1] if by_end else None
    # Calls of zero length may name each other as parents.
    while following is not None and following.start.call_id not in seen:
        path.append(following)
        seen.add(following.start.call_id)
        following = _waited_for(following, by_id, by_thread, by_end)
    return path[::-1]


def _waited_for(
    call: SettledCall,
    by_id: Mapping[str, SettledCall],
    by_thread: Mapping[str, Sequence[SettledCall]],
    by_end: Sequence[SettledCall],
) -> SettledCall | None:
    """Return the call that this one most likely waited for."""
    parents = call.start.parents
    if parents == ():
        return None
    named = [by_id[parent] for parent in parents or () if parent in by_id]
    before = [parent for parent in named if parent.settled_s <= call.began_s]
    if before:
        return max(before, key=attrgetter("settled_s"))
    return _last_before(call.began_s, by_thread[call.start.thread_id]) or _last_before(call.began_s, by_end)


def _last_before(time_s: float, by_end: Sequence[SettledCall]) -> SettledCall | None:
    place = bisect_right(by_end, time_s, key=attrgetter("settled_s"))
    return by_end[place - 1] if place else None


MENTIONED_S = 1.0
"""From how long on it is mentioned that a program stayed open without a call."""
_WORDS = {
    "inactive": WORDS[ProgramState.WAITING_FOR_MEMORY],
    "queue": WORDS[ProgramState.WAITING_FOR_SLOT],
    "engine": WORDS[ProgramState.IN_ENGINE],
    "tools": "in tools",
    "client": "at its client",
}


def spent_text(program: PastProgram) -> str:
    """Return one or two sentences about where a program's time went."""
    parts = spent(program)
    named = [
        f"{seconds(part_s)} {_WORDS[name]}" for name, part_s in parts.parts_s.items() if part_s >= 0.0005
    ]
    count = len(program.calls) + program.left_out
    text = f"{count} {'call' if count == 1 else 'calls'} in {seconds(program.duration_s)}"
    text += f": {', '.join(named)}." if named else "."
    path = set(parts.critical_path)
    on_path = [call for call in program.calls if call.start.call_id in path]
    if on_path and len(program.calls) > 1:
        slowest = max(on_path, key=attrgetter("duration_s"))
        longest = f"the longest ({slowest.start.call_id}) took {seconds(slowest.duration_s)}"
        text += f" The critical path has {len(path)} call{'s' * (len(path) > 1)}; {longest}."
    if program.open_after_s >= MENTIONED_S:
        text += f" It stayed open for {seconds(program.open_after_s)} after its last answer."
    if program.left_out:
        text += f" {program.left_out} calls are not kept: they were too many."
    return text
