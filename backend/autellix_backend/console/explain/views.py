"""Rows of programs and calls for operators: plain values, with times relative to the program's arrival."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from autellix_backend.console.explain.overview import Overview
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import WORDS, EnginePhase, ProgramState
from autellix_backend.reports.snapshot import CallSnapshot
from autellix_backend.stores.base import CallStart, ProgramView, StoredCall

MAX_THREAD_NAMES = 16
"""Names of one program's threads that its row lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One line of the table of programs."""

    program_id: str
    name: str | None
    group: str | None
    over_median: float | None
    """Its age over the median time of its group's programs, once half of them have ended."""
    state: ProgramState
    state_text: str
    """The state in words, with the phase or the tools."""
    state_s: float
    """How long it has been in this state; with several calls, the one that has longest."""
    phase: EnginePhase | None
    """What it does in its engine; None elsewhere, or if that is not known."""
    tools: tuple[str, ...]
    """Between calls: the tools that its last answer asked for, which its client should be running."""
    priority: str
    """The priority of its latest call, as far as this gateway knows it."""
    session_ids: tuple[str, ...]
    flags: tuple[str, ...]
    engines: tuple[str, ...]
    """The engines of its open calls, without any that of its last call."""
    threads: int
    """Threads that have made calls, as far as this gateway knows them."""
    thread_names: tuple[str, ...]
    active_calls: int
    finished_calls: int
    level: int | None
    """The best queue level of its calls, or without calls the level that its next call would enter; None
    under policies without levels."""
    service_s: float
    """Attained service as the policy counts it."""
    total_service_s: float
    wait_s: float
    """All waiting of its calls, that of open calls up to now."""
    ratio: float | None
    """Waiting over attained service, as the policy counts both; None without service, and under policies
    without levels."""
    kv_share: float | None
    """The share of its engines' KV blocks that its calls hold, shared blocks counted once; None without a
    snapshot."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    intercepted_s: float
    """Time that its tools took at the client."""
    age_s: float
    estimated: bool
    """Whether service and waiting are estimates in part, as of calls whose engine reported none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRow:
    """A tool that ran at the client."""

    tool: str
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One call of a program; times count from the program's first arrival."""

    call_id: str
    thread_id: str
    thread_name: str | None
    parents: tuple[str, ...] | None
    flags: tuple[str, ...]
    interceptions: tuple[ToolRow, ...]
    state: ProgramState
    state_text: str
    start_s: float
    finish_s: float | None
    duration_s: float
    outcome: str | None
    service_s: float | None
    wait_s: float | None
    inherited_service_s: float | None
    level: int | None
    preemptions: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    estimated: bool | None


_SO_FAR = ("service_s", "wait_s", "inherited_service_s", "level", "preemptions")
"""The fields of a row that an engine's snapshot has too."""
_AT_END = ("outcome", "prompt_tokens", "cached_tokens", "output_tokens")


def program_row(
    view: ProgramView,
    overview: Overview,
    config: SchedulerConfig,
    viewer: Tenant,
    settled: Sequence[SettledCall] = (),
    median_s: float | None = None,
) -> ProgramRow:
    """Return a program's line in the table, with ids as the viewer knows them.

    `settled` are its settled calls, as far as this gateway served them; `median_s` is its group's.
    """
    place = overview.program_place(view, settled)
    has_levels = make_policy(config.policy).has_levels
    calls = overview.calls_of(view.program_id)
    threads = threads_of(chain((call.start for call in settled), (call.start for call in calls)))
    last_engine = (settled[-1].engine,) if settled else ()
    entries = [entry for call in calls if (entry := overview.in_engine(call)) is not None]
    age_s = overview.now - view.first_arrival_s
    return ProgramRow(
        program_id=viewer.shown(view.program_id),
        name=view.name,
        group=view.group,
        over_median=age_s / median_s if median_s else None,
        state=place.state,
        state_text=place.text,
        state_s=place.state_s,
        phase=place.phase,
        tools=place.tools,
        priority=_priority(calls, settled),
        session_ids=tuple(map(viewer.shown, view.session_ids)),
        flags=view.flags,
        engines=tuple(overview.engines_of(view.program_id)) or last_engine,
        threads=max(len(threads), view.active_threads),
        thread_names=names_of(threads),
        active_calls=view.active_calls,
        finished_calls=view.finished_calls,
        level=_level(view, entries, config) if has_levels else None,
        service_s=view.service_s,
        total_service_s=view.total_service_s,
        wait_s=finished_wait_s(view, settled) + place.wait_s,
        ratio=view.wait_s / view.service_s if has_levels and view.service_s > 0 else None,
        kv_share=_kv_share(view.program_id, entries, overview),
        prompt_tokens=view.prompt_tokens,
        cached_tokens=view.cached_tokens,
        output_tokens=view.output_tokens,
        intercepted_s=view.intercepted_s,
        age_s=age_s,
        estimated=any(call.receipt.estimated for call in settled),
    )


def call_rows(view: ProgramView, overview: Overview) -> tuple[CallRow, ...]:
    """Return a program's calls; open ones have the values of their engines' snapshots."""
    open_calls = {call.start.key: call for call in overview.calls_of(view.program_id)}
    return tuple(
        _call_row(call, view.first_arrival_s, overview, open_calls.get(call.start.key)) for call in view.calls
    )


def finished_wait_s(view: ProgramView, settled: Sequence[SettledCall]) -> float:
    """Return the waiting (s) of a program's finished calls.

    The process table has what is left after promotions by anti-starvation; it counts where another gateway
    served some of the calls.
    """
    if len(settled) < view.finished_calls:
        return view.wait_s
    return sum(call.receipt.wait_s for call in settled)


def threads_of(starts: Iterable[CallStart]) -> dict[str, str | None]:
    """Return the threads that have made calls, in the order of these, with their names."""
    found: dict[str, str | None] = {}
    for start in starts:
        found[start.thread_id] = found.get(start.thread_id) or start.thread_name
    return found


def names_of(threads: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the names of threads, each once, MAX_THREAD_NAMES at most."""
    return tuple(islice(dict.fromkeys(filter(None, threads.values())), MAX_THREAD_NAMES))


def critical_path_s(calls: Iterable[StoredCall]) -> float:
    """Return the service (s) of the longest chain of dependent finished calls.

    A call whose parents are unknown depends on the call before it in its thread.
    """
    ends: dict[str, float] = {}
    last_of_thread: dict[str, float] = {}
    for call in calls:
        if call.end is None:
            continue
        start = call.start
        if start.parents is None:
            start_s = last_of_thread.get(start.thread_id, 0.0)
        else:
            start_s = max((ends.get(parent, 0.0) for parent in start.parents), default=0.0)
        ends[start.call_id] = last_of_thread[start.thread_id] = start_s + call.end.service_s
    return max(ends.values(), default=0.0)


def _priority(calls: Sequence[GatewayCall], settled: Sequence[SettledCall]) -> Priority:
    latest = calls[-1] if calls else settled[-1] if settled else None
    return Priority.DEFAULT if latest is None else latest.start.hints.priority


def _level(view: ProgramView, entries: list[CallSnapshot], config: SchedulerConfig) -> int:
    if entries:
        return min(entry.level for entry in entries)
    return bisect_right(config.bounds, make_policy(config.policy).inherit(view.service_s)) + 1


def _kv_share(program_id: str, entries: list[CallSnapshot], overview: Overview) -> float | None:
    engines = overview.engines_of(program_id).values()
    total = sum(engine.snapshot.kv_total_blocks for engine in engines if engine and engine.snapshot)
    return sum(entry.kv_blocks for entry in entries) / total if total else None


def _call_row(call: StoredCall, origin_s: float, overview: Overview, found: GatewayCall | None) -> CallRow:
    start, end = call.start, call.end
    here = overview.place_of(found) if found else overview.place_elsewhere(start.program_id, start.key)
    place = here if end is None else None
    state = ProgramState.ENDED if end else place.state if place else ProgramState.AT_ANOTHER_GATEWAY
    known = end or (overview.in_engine(found) if found else None)
    so_far = {name: getattr(known, name, None) for name in _SO_FAR}
    if place is not None:
        so_far["wait_s"] = place.wait_s
    return CallRow(
        call_id=start.call_id,
        thread_id=start.thread_id,
        thread_name=start.thread_name,
        parents=start.parents,
        flags=start.flags,
        interceptions=tuple(ToolRow(tool=tool, duration_s=spent_s) for tool, spent_s in start.interceptions),
        state=state,
        state_text=place.text if place else WORDS[state],
        start_s=call.start_s - origin_s,
        finish_s=None if call.finish_s is None else call.finish_s - origin_s,
        duration_s=(overview.now if call.finish_s is None else call.finish_s) - call.start_s,
        estimated=end.is_estimated if end else None,
        **so_far,
        **{name: getattr(end, name, None) for name in _AT_END},
    )
