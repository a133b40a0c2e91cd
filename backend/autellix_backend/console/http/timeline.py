"""The timeline of a program, living or ended: what each of its calls did when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from fastapi import APIRouter
from starlette.responses import Response

from autellix_backend.console.explain.overview import CallPlace, Overview
from autellix_backend.console.history.critical_path import Spent, spent
from autellix_backend.console.history.history import PastProgram
from autellix_backend.console.history.spans import Span, SpanKind
from autellix_backend.console.http.history import TimelineCall, finished_row
from autellix_backend.console.http.parameters import ConsoleParts, CurrentOverview, Ended, Living, Turn
from autellix_backend.console.http.programs import ONE_PROGRAM
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.settlement import make_settled
from autellix_backend.gateway.http.bodies import json_response
from autellix_backend.gateway.http.parameters import Viewer, unknown_program
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.observe.states import WAITING, WORDS, ProgramState
from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import ProgramView

MAX_OPEN_CALLS = 1024
"""The most open calls of one program that are shown, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTimeline:
    """One program with its calls, in the order of their arrival, as far as this gateway served them."""

    program_id: str
    name: str | None
    flags: tuple[str, ...]
    state: ProgramState
    state_text: str
    began_at_s: float
    """Seconds since 1970."""
    duration_s: float
    """Up to its last answer, or to now while it has open calls."""
    left_out: int
    """Calls beyond the numbers that are kept and shown."""
    spent: Spent
    """What its duration so far was spent on, along its critical path."""
    calls: tuple[TimelineCall, ...]


router = APIRouter(tags=["operators"], responses=refusals(401, 500))


@router.get(ONE_PROGRAM + "/timeline", response_model=ProgramTimeline, responses=refusals(404))
async def show_timeline(
    program_id: str,
    viewer: Viewer,
    _turn: Turn,
    view: Living,
    program: Ended,
    overview: CurrentOverview,
    console: ConsoleParts,
) -> Response:
    """Show what each call of a program did when, while it runs or after it ended."""
    place: CallPlace | None = None
    open_rows: tuple[TimelineCall, ...] = ()
    if view is not None:
        recorded = console.history.living(view.program_id)
        place = overview.program_place(view, recorded.calls if recorded else ())
        program, open_rows = living_program(view, recorded, overview, wall_s=time.time())
    if program is None:
        raise unknown_program(program_id)
    shown_id = viewer.shown(program.program_id)
    # A thread encodes the answer: thousands of calls would delay those of other programs.
    return await asyncio.to_thread(lambda: json_response(timeline_of(program, shown_id, place, open_rows)))


def timeline_of(
    program: PastProgram,
    shown_id: str,
    place: CallPlace | None = None,
    open_rows: tuple[TimelineCall, ...] = (),
) -> ProgramTimeline:
    """Return the timeline of a program.

    Args:
        program: The program; calls that are open are its last ones.
        shown_id: Its id as the viewer knows it.
        place: What it is doing; None if it has ended.
        open_rows: The rows of its open calls.
    """
    finished = program.calls[: len(program.calls) - len(open_rows)]
    return ProgramTimeline(
        program_id=shown_id,
        name=program.name,
        flags=program.flags,
        state=place.state if place else ProgramState.ENDED,
        state_text=place.text if place else WORDS[ProgramState.ENDED],
        began_at_s=program.began_at_s,
        duration_s=program.duration_s,
        left_out=program.left_out,
        spent=spent(program),
        calls=(*(finished_row(call, program.start_s) for call in finished), *open_rows),
    )


def living_program(
    view: ProgramView, recorded: PastProgram | None, overview: Overview, *, wall_s: float
) -> tuple[PastProgram, tuple[TimelineCall, ...]]:
    """Return a program of the process table as if it ended at this moment, and the rows of its open calls.

    Args:
        view: The program.
        recorded: Its settled calls; None if another gateway served them.
        overview: The open calls and engines of the moment.
        wall_s: The moment in seconds since 1970.
    """
    origin_s = view.first_arrival_s if recorded is None else recorded.start_s
    finished = [] if recorded is None else sorted(recorded.calls, key=attrgetter("began_s"))
    opened = overview.calls_of(view.program_id)
    shown = [_open_call(call, overview, origin_s) for call in opened[:MAX_OPEN_CALLS]]
    program = PastProgram(
        program_id=view.program_id,
        name=view.name,
        start_s=origin_s,
        began_at_s=wall_s - (overview.now - origin_s),
        calls=[*finished, *(settled for settled, _ in shown)],
        left_out=(0 if recorded is None else recorded.left_out) + len(opened) - len(shown),
    )
    return program, tuple(row for _, row in shown)


def _open_call(call: GatewayCall, overview: Overview, origin_s: float) -> tuple[SettledCall, TimelineCall]:
    """Return an open call as if it ended at this moment, and its row."""
    place, entry, parts = (
        overview.place_of(call),
        overview.in_engine(call),
        open_spans(call, overview, origin_s),
    )
    receipt = Receipt(
        call_id=call.start.call_id,
        program_id=call.shown_program,
        wait_s=place.wait_s,
        inactive_s=_total_s(parts, SpanKind.INACTIVE),
        service_s=0.0 if entry is None else entry.service_s,
        level=call.level if entry is None else entry.level,
        preemptions=0 if entry is None else entry.preemptions,
        estimated=True,
    )
    settled = make_settled(call, receipt, Outcome.ABORTED, overview.now, 0.0)
    row = replace(
        finished_row(settled, origin_s),
        state=place.state,
        state_text=place.text,
        outcome=None,
        finish_s=None,
        output_tokens=call.answer.streamed_events or None,
        spans=parts,
    )
    return settled, row


def _total_s(parts: Iterable[Span], *kinds: SpanKind) -> float:
    return sum(part.finish_s - part.start_s for part in parts if part.kind in kinds)


def open_spans(call: GatewayCall, overview: Overview, origin_s: float) -> tuple[Span, ...]:
    """Return what an open call did so far, by its engine's last snapshot."""
    place, entry = overview.place_of(call), overview.in_engine(call)
    state, engine = place.state, overview.engines.get(call.engine)
    start_s, now_s = call.began_s - origin_s, overview.now - origin_s
    if entry is None:
        kind = SpanKind.INACTIVE if state is ProgramState.WAITING_FOR_MEMORY else SpanKind.WAITING
        moves = [(kind, now_s if state in WAITING else start_s + place.wait_s)]
    else:
        age_s = 0.0 if engine is None else engine.age_s or 0.0
        since_s = min(now_s, max(start_s, now_s - age_s - entry.since_s))
        # A snapshot does not show when it ran before its last preemption.
        moves = [(SpanKind.ENGINE if entry.preemptions else SpanKind.WAITING, since_s)]
        if not entry.is_running:
            waits = SpanKind.PREEMPTED if entry.preemptions else SpanKind.WAITING
            moves.append((SpanKind.INACTIVE if entry.inactive_place is not None else waits, now_s))
    if call.answer.first_bytes_s is not None and moves[-1][1] < now_s and not (entry and entry.preemptions):
        moves.append((SpanKind.PREFILL, call.answer.first_bytes_s - origin_s))
        moves.append((SpanKind.DECODE, now_s))
    else:
        moves.append((SpanKind.ENGINE, now_s))
    found: list[Span] = []
    clock_s = start_s
    for kind, end_s in moves:
        if end_s <= clock_s:
            continue
        if found and found[-1].kind is kind:
            found[-1] = replace(found[-1], finish_s=end_s)
        else:
            found.append(Span(kind=kind, start_s=clock_s, finish_s=end_s))
        clock_s = end_s
    return tuple(found)
