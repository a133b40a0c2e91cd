"""Programs as a trace that Perfetto and chrome://tracing open.

A program is a process, and each of its threads a track; calls of one thread that overlap get tracks of
their own, because slices of one track nest. A call's slice holds those of what it did, and arrows lead from a
call to those that depend on it. Times are microseconds from the first arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autellix_lab.workload.trace import ProgramTrace

MICROSECONDS = 1e6
_KEPT = ("outcome", "engine", "level", "preemptions", "prompt_tokens", "cached_tokens", "output_tokens")

Timeline = Mapping[str, Any]
"""The gateway's answer about one program: see `ProgramTimeline`."""
_Event = dict[str, Any]


def perfetto_trace(timelines: Iterable[Timeline]) -> dict[str, Any]:
    """Return programs in Chrome's trace event format."""
    programs = sorted(timelines, key=lambda timeline: (timeline["began_at_s"], timeline["program_id"]))
    origin_s = programs[0]["began_at_s"] if programs else 0.0
    events: list[_Event] = []
    for number, program in enumerate(programs, start=1):
        events += _program_events(program, number, program["began_at_s"] - origin_s, len(events))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def recorded_timeline(program: ProgramTrace) -> Timeline | None:
    """Return a recorded program as the gateway would tell of it; None if its trace lacks times of calls."""
    calls: list[dict[str, Any]] = []
    for call in program.calls:
        if call.start_s is None or call.latency_s is None:
            return None
        calls.append(
            {
                **dict.fromkeys(_KEPT),
                "call_id": str(call.id),
                "thread_id": call.thread,
                "parents": [str(parent) for parent in call.parents],
                "start_s": call.start_s,
                "finish_s": call.start_s + call.latency_s,
                "prompt_tokens": call.prefill_tokens,
                "cached_tokens": call.shared_prefix_tokens,
                "output_tokens": call.decode_tokens,
                "tools": [],
                "spans": [],
            }
        )
    return {
        "program_id": program.program_id,
        "name": program.source,
        "began_at_s": program.arrival_s or 0.0,
        "duration_s": max(call["finish_s"] for call in calls),
        "calls": sorted(calls, key=lambda call: call["start_s"]),
    }


def _program_events(program: Timeline, pid: int, offset_s: float, first_flow: int) -> Iterator[_Event]:
    name, program_id = program["name"], program["program_id"]
    yield _name("process_name", pid, 0, program_id if name is None else f"{program_id} ({name})")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    end_s = program["duration_s"]
    tracks = _tracks(program["calls"], end_s)
    for (thread, row), tid in tracks.names.items():
        yield _name("thread_name", pid, tid, thread if row == 0 else f"{thread} ({row + 1})")
    places = {call["call_id"]: place for place, call in enumerate(program["calls"])}
    flow = first_flow
    for place, call in enumerate(program["calls"]):
        tid = tracks.of_call[place]
        yield from _call_slices(call, end_s, pid, tid, offset_s)
        for parent_id in call["parents"] or ():
            parent_place = places.get(parent_id)
            if parent_place is None:
                continue
            parent = program["calls"][parent_place]
            if parent["finish_s"] is None or parent["finish_s"] > call["start_s"]:
                continue
            flow += 1
            parent_tid = tracks.of_call[parent_place]
            arrow = {"cat": "depends", "name": "depends", "id": f"{pid}.{flow}", "pid": pid}
            # An arrow starts inside its slice: at its very end it would be bound to the next one.
            left_s = max(parent["start_s"], parent["finish_s"] - 1 / MICROSECONDS)
            yield {**arrow, "ph": "s", "tid": parent_tid, "ts": _time(offset_s + left_s)}
            yield {**arrow, "ph": "f", "bp": "e", "tid": tid, "ts": _time(offset_s + call["start_s"])}


class _Tracks:
    """Which track each call is on."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, int], int] = {}
        """Tracks by thread and row."""
        self.of_call: list[int] = []


def _tracks(calls: Iterable[Mapping[str, Any]], end_s: float) -> _Tracks:
    tracks = _Tracks()
    ends: dict[str, list[float]] = {}
    for call in calls:
        rows = ends.setdefault(call["thread_id"], [])
        # With its tools, which are drawn before it.
        begins_s = call["start_s"] - sum(spent for _, spent in call["tools"])
        row = next((row for row, end in enumerate(rows) if end <= begins_s), len(rows))
        rows[row:] = [_end(call, end_s), *rows[row + 1 :]]
        key = (call["thread_id"], row)
        tracks.of_call.append(tracks.names.setdefault(key, len(tracks.names) + 1))
    return tracks


def _call_slices(
    call: Mapping[str, Any], end_s: float, pid: int, tid: int, offset_s: float
) -> Iterator[_Event]:
    start_s = call["start_s"]
    clock_s = start_s - sum(spent for _, spent in call["tools"])
    for tool, spent_s in call["tools"]:
        yield _slice(tool, "tool", offset_s + clock_s, spent_s, pid, tid)
        clock_s += spent_s
    arguments = {key: call[key] for key in _KEPT if call[key] is not None}
    yield {
        **_slice(call["call_id"], "call", offset_s + start_s, _end(call, end_s) - start_s, pid, tid),
        "args": arguments,
    }
    for span in call["spans"]:
        length_s = span["finish_s"] - span["start_s"]
        yield _slice(span["kind"], "span", offset_s + span["start_s"], length_s, pid, tid)


def _end(call: Mapping[str, Any], end_s: float) -> float:
    return float(end_s if call["finish_s"] is None else call["finish_s"])


def _slice(name: str, category: str, start_s: float, length_s: float, pid: int, tid: int) -> _Event:
    # Of rounded ends, so that slices that touch do not overlap.
    start = _time(start_s)
    length = max(0, _time(start_s + length_s) - start)
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start, "dur": length}


def _name(kind: str, pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _time(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
