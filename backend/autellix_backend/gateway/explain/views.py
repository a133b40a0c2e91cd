"""Programs and calls as the operators' endpoints show them: plain values, no ids of this process's clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.snapshot import CallStanding
from autellix_backend.gateway.explain.situation import OpenCallView, ProgramState, Situation
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.stores.base import CallEnd, CallRecord, ProgramView


def show_program(
    view: ProgramView, situation: Situation, config: SchedulerConfig, viewer: Tenant, now: float
) -> dict[str, object]:
    """Return one line of the table of programs, with the ids that the viewer knows."""
    state = situation.program_state(view)
    calls = situation.calls_of(view.program_id)
    standings = [standing for call in calls if (standing := situation.standing(call)) is not None]
    return {
        "program_id": viewer.shown(view.program_id),
        "name": view.name,
        "state": state,
        "session_ids": tuple(map(viewer.shown, view.session_ids)),
        "flags": view.flags,
        "engines": tuple(dict.fromkeys(call.engine for call in calls)),
        "threads": view.active_threads,
        "active_calls": view.active_calls,
        "finished_calls": view.finished_calls,
        "level": _level(view, standings, config),
        "service_s": view.service_s,
        "total_service_s": view.total_service_s,
        "critical_path_s": view.service_s if config.policy.startswith("atlas") else None,
        "wait_s": view.wait_s,
        "ratio": view.wait_s / view.service_s if view.service_s > 0 else None,
        "kv_share": _kv_share(calls, standings, situation),
        "prompt_tokens": view.prompt_tokens,
        "cached_tokens": view.cached_tokens,
        "output_tokens": view.output_tokens,
        "intercepted_s": view.intercepted_s,
        "age_s": now - view.first_arrival_s,
        "idle_s": now - view.last_event_s if state is ProgramState.IDLE else 0.0,
    }


def show_calls(view: ProgramView, situation: Situation, now: float) -> list[dict[str, object]]:
    """Return a program's calls with its parents and times; running ones with what is known by now."""
    open_calls = {call.call_id: call for call in situation.calls_of(view.program_id)}
    return [
        _call(
            call,
            view.first_arrival_s,
            now,
            None if call.end else open_calls.get(call.start.call_id),
            situation,
        )
        for call in view.calls
    ]


def critical_path_s(calls: Iterable[CallRecord]) -> float:
    """Return the longest chain of service (s) among finished calls.

    A call follows its parents; one whose parents are unknown follows the last one before it in its thread.
    """
    ends: dict[str, float] = {}
    last_of_thread: dict[str, float] = {}
    for call in calls:
        if call.end is None:
            continue
        start = call.start
        if start.parents is None:
            begin_s = last_of_thread.get(start.thread_id, 0.0)
        else:
            begin_s = max((ends.get(parent, 0.0) for parent in start.parents), default=0.0)
        ends[start.call_id] = last_of_thread[start.thread_id] = begin_s + call.end.service_s
    return max(ends.values(), default=0.0)


def _level(view: ProgramView, standings: list[CallStanding], config: SchedulerConfig) -> int:
    """Return the best level of its calls, else the one that its next call would enter."""
    if standings:
        return min(standing.level for standing in standings)
    policy = make_policy(config.policy)
    if not policy.has_levels:
        return 1
    return bisect_right(config.bounds, policy.inherit(view.service_s)) + 1


def _kv_share(calls: list[OpenCallView], standings: list[CallStanding], situation: Situation) -> float | None:
    """Return the share of its engines' KV blocks that it holds; None where no engine tells."""
    engines = (situation.engines.get(name) for name in dict.fromkeys(call.engine for call in calls))
    totals = [engine.snapshot.kv_total_blocks for engine in engines if engine and engine.snapshot]
    return sum(standing.kv_blocks for standing in standings) / sum(totals) if sum(totals) else None


def _call(
    call: CallRecord, origin_s: float, now: float, found: OpenCallView | None, situation: Situation
) -> dict[str, object]:
    """Show a call with times since its program's first arrival; the store's clock has no meaning outside."""
    start = call.start
    return {
        "call_id": start.call_id,
        "thread_id": start.thread_id,
        "parents": start.parents,
        "flags": start.flags,
        "interceptions": [{"tool": tool, "duration_s": seconds} for tool, seconds in start.interceptions],
        "state": "finished" if call.end else situation.state_of(found) if found else "running",
        "start_s": call.start_s - origin_s,
        "finish_s": None if call.finish_s is None else call.finish_s - origin_s,
        "duration_s": (now if call.finish_s is None else call.finish_s) - call.start_s,
        **_numbers(call.end, situation.standing(found) if found else None),
    }


def _numbers(end: CallEnd | None, standing: CallStanding | None) -> dict[str, object]:
    """Return what a call took: in all when it has ended, else by now, as far as its engine tells."""
    known = end or standing
    return {
        "outcome": end.outcome if end else None,
        "service_s": known.service_s if known else None,
        "wait_s": known.wait_s if known else None,
        "inherited_service_s": known.inherited_service_s if known else None,
        "level": known.level if known else None,
        "preemptions": known.preemptions if known else None,
        "prompt_tokens": end.prompt_tokens if end else None,
        "cached_tokens": end.cached_tokens if end else None,
        "output_tokens": end.output_tokens if end else None,
        "estimated": end.is_estimated if end else None,
    }
