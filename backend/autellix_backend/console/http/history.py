"""Ended programs for operators: where their time went, and their calls."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from autellix_backend.console.explain.explanations import CallExplanation
from autellix_backend.console.explain.sentences import breaks_text, implicit_text, joined, prefix_text
from autellix_backend.console.explain.views import names_of, threads_of
from autellix_backend.console.history.critical_path import Spent, spent, spent_text
from autellix_backend.console.history.history import PastProgram
from autellix_backend.console.history.spans import Span, spans
from autellix_backend.console.http.parameters import ConsoleParts, Ended, IsShown, Turn
from autellix_backend.gateway.errors import InvalidRequestError, NotFoundError
from autellix_backend.gateway.http.bodies import DEFAULT_LIMIT, Id, Limit, json_response
from autellix_backend.gateway.http.parameters import Viewer
from autellix_backend.gateway.http.refusals import refusals
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import Outcome, PrefixBreak, SettledCall
from autellix_backend.observe.states import WORDS, ProgramState
from autellix_wire.paths import API_PREFIX

HISTORY_PATH = API_PREFIX + "/history"
CALLS_PATH = API_PREFIX + "/calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRow:
    """One ended program; unknown numbers of its calls count as zero."""

    program_id: str
    name: str | None
    group: str | None
    state: ProgramState
    """Always `ended`."""
    state_text: str
    flags: tuple[str, ...]
    engines: tuple[str, ...]
    threads: int
    thread_names: tuple[str, ...]
    finished_calls: int
    began_at_s: float
    """Seconds since 1970."""
    ended_at_s: float
    """When it left the process table, seconds since 1970."""
    duration_s: float
    """The time from the first arrival to the last answer."""
    wait_s: float
    """Over all calls, as the next three."""
    inactive_s: float
    service_s: float
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    failed_calls: int
    """Calls that were not answered."""
    left_out: int
    """Calls beyond the number that is kept."""
    estimated: bool
    """Whether service and waiting are estimates in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTable:
    """Ended programs, the last one first."""

    programs: list[EndedRow]
    has_more: bool
    next: str | None = None
    """Where the next answer begins (`after`); None at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineCall:
    """One call, open or ended; times count from its program's first arrival, unknown values are null."""

    call_id: str
    thread_id: str
    thread_name: str | None
    parents: tuple[str, ...] | None
    tools: tuple[tuple[str, float], ...]
    """Tools that ran at the client before it: name and seconds."""
    engine: str
    state: ProgramState
    state_text: str
    outcome: str | None
    start_s: float
    finish_s: float | None
    first_token_s: float | None
    """The time from the arrival to the first bytes of a streamed answer."""
    wait_s: float
    inactive_s: float
    service_s: float
    level: int | None
    preemptions: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool
    prefix_break: PrefixBreak | None = None
    """Why it found less of its program's context in the prefix cache than there was."""
    prefix_text: str = ""
    """The same in a sentence."""
    spans: tuple[Span, ...]
    """Without gaps, up to its end in the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedDetail(EndedRow):
    """One ended program with its calls, and where its time went."""

    text: str
    spent: Spent
    calls: tuple[TimelineCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExplanation:
    """Where the time of an ended program went, in the form of an explanation of a living one."""

    program_id: str
    name: str | None
    flags: tuple[str, ...]
    state: ProgramState
    """Always `ended`."""
    state_text: str
    text: str
    spent: Spent
    snapshot_age_s: None = None
    calls: tuple[CallExplanation, ...] = ()
    """Always empty: no call is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAccount:
    """What became of a settled call's context."""

    call_id: str
    program_id: str
    thread_id: str
    engine: str
    text: str
    prefix_break: PrefixBreak | None


router = APIRouter(tags=["operators"], responses=refusals(401, 500))


@router.get(HISTORY_PATH, response_model=EndedTable, responses=refusals(400))
async def list_ended(
    viewer: Viewer,
    console: ConsoleParts,
    is_shown: IsShown,
    turn: Turn,
    limit: Limit = DEFAULT_LIMIT,
    group: Annotated[Id | None, Query()] = None,
    after: str | None = None,
) -> Response:
    """List the programs that ended, or those of a group, the last first: the tenant's, for an admin all."""
    before = _ended_before(after)
    programs = filter(is_shown, console.history.programs(viewer.visible_prefix))
    listed = (program for program in programs if group is None or program.group == group)
    ids = [((program.ended_at_s, viewer.shown(program.program_id)), program) for program in listed]
    found = sorted((each for each in ids if each[0] < before), key=itemgetter(0), reverse=True)
    rows: list[EndedRow] = []
    for _, program in found[:limit]:
        rows.append(ended_row(program, viewer))
        await turn.pause()
    has_more = len(found) > limit
    cursor = f"{rows[-1].ended_at_s}:{rows[-1].program_id}" if has_more else None
    return json_response(EndedTable(programs=rows, has_more=has_more, next=cursor))


@router.get(HISTORY_PATH + "/{program_id:path}", response_model=EndedDetail, responses=refusals(404))
async def show_ended(program_id: str, viewer: Viewer, _turn: Turn, program: Ended) -> Response:
    """Show an ended program with its calls."""
    if program is None:
        raise NotFoundError(f"the history has no program {program_id!r}", param="program_id")
    # In a thread: it may have thousands of calls.
    return await asyncio.to_thread(lambda: json_response(detail_of(program, viewer)))


@router.get(CALLS_PATH + "/{call_id:path}/why", responses=refusals(404))
async def explain_call(
    call_id: str, viewer: Viewer, console: ConsoleParts, is_shown: IsShown, _turn: Turn
) -> CallAccount:
    """Explain how much of its program's context a settled call found in the prefix cache."""
    for program in console.history.all_programs(viewer.visible_prefix):
        for call in reversed(program.calls) if is_shown(program) else ():
            if call.start.call_id == call_id:
                return CallAccount(
                    call_id=call_id,
                    program_id=viewer.shown(program.program_id),
                    thread_id=call.start.thread_id,
                    engine=call.engine,
                    text=prefix_text(call),
                    prefix_break=call.prefix_break,
                )
    raise NotFoundError(f"no settled call {call_id!r} is known", param="call_id")


def detail_of(program: PastProgram, viewer: Tenant) -> EndedDetail:
    """Return an ended program with its calls."""
    return EndedDetail(
        **asdict(ended_row(program, viewer)),
        text=ended_text(program),
        spent=spent(program),
        calls=tuple(finished_row(call, program.start_s) for call in program.calls),
    )


def explain_ended(program: PastProgram, viewer: Tenant) -> EndedExplanation:
    """Return where the time of an ended program went."""
    return EndedExplanation(
        program_id=viewer.shown(program.program_id),
        name=program.name,
        flags=program.flags,
        state=ProgramState.ENDED,
        state_text=WORDS[ProgramState.ENDED],
        text=ended_text(program),
        spent=spent(program),
    )


def ended_text(program: PastProgram) -> str:
    """Return where the time of an ended program went, in words."""
    return joined(spent_text(program), implicit_text(program.flags), breaks_text(program.calls))


def ended_row(program: PastProgram, viewer: Tenant) -> EndedRow:
    """Return an ended program's row, with its id as the viewer knows it."""
    calls = program.calls
    usages = [usage for call in calls if (usage := call.answer_usage) is not None]
    threads = threads_of(call.start for call in calls)
    return EndedRow(
        program_id=viewer.shown(program.program_id),
        name=program.name,
        group=program.group,
        state=ProgramState.ENDED,
        state_text=WORDS[ProgramState.ENDED],
        flags=program.flags,
        engines=tuple(dict.fromkeys(call.engine for call in calls)),
        threads=len(threads),
        thread_names=names_of(threads),
        finished_calls=len(calls) + program.left_out,
        began_at_s=program.began_at_s,
        ended_at_s=program.ended_at_s,
        duration_s=program.duration_s,
        wait_s=sum(call.receipt.wait_s for call in calls),
        inactive_s=sum(call.receipt.inactive_s for call in calls),
        service_s=sum(call.receipt.service_s for call in calls),
        preemptions=sum(call.receipt.preemptions or 0 for call in calls),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        failed_calls=sum(call.outcome is not Outcome.OK for call in calls),
        left_out=program.left_out,
        estimated=any(call.receipt.estimated for call in calls),
    )


def finished_row(call: SettledCall, origin_s: float) -> TimelineCall:
    """Return the row of a settled call whose program began at `origin_s`."""
    start, receipt, usage = call.start, call.receipt, call.answer_usage
    return TimelineCall(
        call_id=start.call_id,
        thread_id=start.thread_id,
        thread_name=start.thread_name,
        parents=start.parents,
        tools=start.interceptions,
        engine=call.engine,
        state=ProgramState.ENDED,
        state_text=WORDS[ProgramState.ENDED],
        outcome=call.outcome,
        start_s=call.began_s - origin_s,
        finish_s=call.settled_s - origin_s,
        first_token_s=call.first_token_s,
        wait_s=receipt.wait_s,
        inactive_s=receipt.inactive_s,
        service_s=receipt.service_s,
        level=receipt.level,
        preemptions=receipt.preemptions or 0,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        estimated=receipt.estimated,
        prefix_break=call.prefix_break,
        prefix_text="" if call.prefix_break is None else prefix_text(call),
        spans=spans(call, origin_s),
    )


def _ended_before(cursor: str | None) -> tuple[float, str]:
    """Return the end and the id of the program after which a listing continues.

    Raises:
        InvalidRequestError: if the cursor is malformed.
    """
    if cursor is None:
        return (math.inf, "")
    ended_at_s, separator, shown_id = cursor.partition(":")
    try:
        if separator:
            return (float(ended_at_s), shown_id)
    except ValueError:
        pass
    raise InvalidRequestError(f"after: {cursor!r} is no cursor; expected an answer's `next`", param="after")
