"""Recorded programs as the page shows programs that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from autellix_backend.gateway.history.history import PastProgram
from autellix_backend.gateway.http.history import ended_row
from autellix_backend.gateway.http.timeline import timeline_of
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import Outcome, SettledCall, Usage
from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import CallStart
from autellix_lab.workload.trace import CallTrace, ProgramTrace

MAX_CALLS = 20_000
"""Calls of all programs whose timelines are shown: a page of more opens slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrograms:
    """Programs in the form of the gateway's answers, in plain JSON values."""

    rows: list[dict[str, Any]]
    timelines: list[dict[str, Any]]
    left_out: int
    """Programs that are not shown."""


def ended_of(program: ProgramTrace) -> PastProgram | None:
    """Return a recorded program as one that has ended; None if its trace lacks the times of its calls."""
    calls = [_settled(call, program.program_id) for call in program.calls]
    known = [call for call in calls if call is not None]
    if len(known) < len(calls):
        return None
    arrival_s = program.arrival_s or 0.0
    return PastProgram(
        program_id=program.program_id,
        name=program.source,
        start_s=0.0,
        began_at_s=arrival_s,
        ended_at_s=arrival_s + max(call.settled_s for call in known),
        calls=sorted(known, key=lambda call: call.began_s),
    )


def _settled(call: CallTrace, program_id: str) -> SettledCall | None:
    if call.start_s is None or call.latency_s is None:
        return None
    call_id = str(call.id)
    return SettledCall(
        start=CallStart(
            key=call_id,
            call_id=call_id,
            program_id=program_id,
            thread_id=call.thread,
            parents=tuple(map(str, call.parents)),
        ),
        receipt=Receipt(call_id=call_id, program_id=program_id, wait_s=0.0, service_s=0.0),
        outcome=Outcome.OK,
        began_s=call.start_s,
        settled_s=call.start_s + call.latency_s,
        ended_at_s=0.0,
        engine="",
        stated_usage=Usage(call.prefill_tokens, call.decode_tokens, call.shared_prefix_tokens),
    )


def show_programs(programs: Iterable[ProgramTrace]) -> ShownPrograms:
    """Return the programs whose times are known: those that took longest, up to a bound on their calls."""
    found = [(program, ended_of(program)) for program in programs]
    known = sorted(
        (ended for _, ended in found if ended is not None), key=lambda ended: ended.duration_s, reverse=True
    )
    shown: list[PastProgram] = []
    calls = 0
    for program in known:
        calls += len(program.calls)
        if calls > MAX_CALLS:
            break
        shown.append(program)
    viewer = Tenant()
    return ShownPrograms(
        rows=[msgspec.to_builtins(ended_row(program, viewer)) for program in shown],
        timelines=[msgspec.to_builtins(timeline_of(program, program.program_id)) for program in shown],
        left_out=len(found) - len(shown),
    )
