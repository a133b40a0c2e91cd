"""Why a program's open calls are where they are, in numbers; `sentences` puts the numbers into words.

Pure functions of a program, the open calls and the engines' last snapshots. An explanation is as old as the
snapshots behind it and states their age.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autellix_backend.console.explain import sentences
from autellix_backend.console.explain.explanations import (
    CallExplanation,
    ProgramAhead,
    ProgramExplanation,
)
from autellix_backend.console.explain.overview import Overview
from autellix_backend.console.explain.views import finished_wait_s
from autellix_backend.core.balance import Placement
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.durations import seconds
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import ProgramState
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView

MAX_AHEAD = 5
"""Programs ahead that are named; further ones are counted."""


def explain_program(
    view: ProgramView,
    overview: Overview,
    config: SchedulerConfig,
    viewer: Tenant,
    placement: Placement | None = None,
    settled: Sequence[SettledCall] = (),
) -> ProgramExplanation:
    """Explain a program and its open calls; programs of tenants other than the viewer stay anonymous.

    Args:
        view: The program.
        overview: The open calls and engines of the moment.
        config: The scheduler's configuration.
        viewer: Who asks.
        placement: Why the program is on its engine; None if its memory decided nothing.
        settled: Its settled calls, as far as this gateway served them.
    """
    place = overview.program_place(view, settled)
    wait_s = finished_wait_s(view, settled) + place.wait_s
    engines = overview.engines_of(view.program_id).values()
    ages = [engine.age_s for engine in engines if engine is not None and engine.age_s is not None]
    text = sentences.program_text(view, place, wait_s, config, has_tenants=bool(viewer.name))
    placed = sentences.placement_text(placement)
    calls = overview.calls_of(view.program_id)
    elsewhere = sentences.elsewhere_text(view.active_calls - len(calls), place)
    returns = ""
    if settled and place.state is ProgramState.BETWEEN_CALLS:
        last = settled[-1]
        snapshot = _snapshot_of(last.engine, overview)
        returns = sentences.return_text(last.start.hints.return_s, snapshot, config, after="its last one")
    return ProgramExplanation(
        program_id=viewer.shown(view.program_id),
        name=view.name,
        flags=view.flags,
        state=place.state,
        state_text=place.text,
        state_s=place.state_s,
        wait_s=wait_s,
        tools=place.tools,
        policy=config.policy,
        text=sentences.joined(
            elsewhere,
            text,
            returns,
            placed,
            sentences.implicit_text(view.flags),
            sentences.breaks_text(settled),
        ),
        snapshot_age_s=max(ages, default=None),
        calls=tuple(explain_call(call, overview, config, viewer) for call in calls),
    )


def explain_call(
    call: GatewayCall, overview: Overview, config: SchedulerConfig, viewer: Tenant
) -> CallExplanation:
    """Explain where an open call is."""
    why_queued, place, open_s = (
        overview.why_queued(call),
        overview.place_of(call),
        overview.now - call.began_s,
    )
    explanation = CallExplanation(
        call_id=call.start.call_id,
        thread_id=call.start.thread_id,
        thread_name=call.start.thread_name,
        engine=call.engine,
        state=place.state,
        state_text=place.text,
        phase=place.phase,
        text=f"It has waited {seconds(place.state_s)} at the gateway: {why_queued}.",
        open_s=open_s,
        state_s=place.state_s,
        wait_s=place.wait_s,
        level=call.level,
        priority=call.start.hints.priority,
        expected_return_s=call.start.hints.return_s,
        retain_s=call.start.hints.retain_s,
        stated_by=dict(call.request.identity.stated.sources),
        inherited_service_s=call.inherited.service_s,
    )
    hints = sentences.joined(
        sentences.priority_text(call.start.hints.priority, config),
        sentences.return_text(call.start.hints.return_s, _snapshot_of(call.engine, overview), config),
        sentences.retention_text(call.start.hints.retain_s, _snapshot_of(call.engine, overview), config),
        sentences.stated_text(call.request.identity.stated.sources),
    )
    if why_queued is not None:
        return replace(explanation, text=sentences.joined(explanation.text, hints))
    entry, snapshot = overview.in_engine(call), overview.rank_of(call)
    if entry is None or snapshot is None:
        engine = overview.engines.get(call.engine)
        return replace(explanation, text=sentences.joined(sentences.sent_text(call, engine, place), hints))
    low_s, high_s = level_bounds(config, entry.level) or (None, None)
    explanation = replace(
        explanation,
        level=entry.level,
        level_min_s=low_s,
        level_max_s=high_s,
        inherited_service_s=entry.inherited_service_s,
        service_s=entry.service_s,
        position=entry.place,
        promoted_in_s=entry.promotion_s,
        quantum_left_s=entry.quantum_s,
    )
    inactive = _inactive(entry, snapshot)
    if inactive is not None:
        explanation, text = replace(explanation, short_of="working_set"), sentences.inactive_text(inactive)
    elif entry.is_running:
        explanation = _with_preemption(explanation, entry, snapshot, config, viewer)
        text = sentences.running_text(explanation, entry, config)
    else:
        explanation = _with_obstacles(explanation, entry, snapshot, viewer)
        text = sentences.waiting_text(explanation, entry, snapshot, config)
    boosted = _boost_text(call, entry, snapshot, overview)
    return replace(explanation, text=sentences.joined(text, hints, boosted))


def level_bounds(config: SchedulerConfig, level: int) -> tuple[float, float | None] | None:
    """Return the attained service (s) at which a queue level begins and ends.

    The last level has no end, and a policy without levels of service no bounds.
    """
    if not make_policy(config.policy).has_levels:
        return None
    edges: tuple[float | None, ...] = (0.0, *config.bounds, None)
    return edges[level - 1] or 0.0, edges[level]


def _snapshot_of(engine: str, overview: Overview) -> EngineSnapshot | None:
    """Return an engine's last snapshot, over all its ranks; None without one."""
    view = overview.engines.get(engine)
    return None if view is None else view.snapshot


def _inactive(entry: CallSnapshot, snapshot: EngineSnapshot) -> Inactive | None:
    """Return why a call's program is not active in its engine; None if it is."""
    if entry.is_admitted or entry.inactive_place is None or snapshot.admission is None:
        return None
    return Inactive(entry.context_tokens or 0, entry.inactive_place, snapshot.admission)


def _boost_text(call: GatewayCall, entry: CallSnapshot, snapshot: EngineSnapshot, overview: Overview) -> str:
    if snapshot.boost is None:
        return ""
    engine = overview.engines.get(call.engine)
    age_s = call.inherited.age_s + overview.now - call.began_s
    head_start_s = None
    if entry.counted_age_s is not None:
        # Both ages at the moment of the snapshot.
        snapshot_age_s = 0.0 if engine is None else engine.age_s or 0.0
        counted_s = entry.counted_age_s - call.start.hints.priority.head_start_s
        head_start_s = max(0.0, counted_s - (age_s - snapshot_age_s))
    return sentences.boost_text(age_s, call.inherited.work, head_start_s, snapshot.boost)


def _with_obstacles(
    explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot, viewer: Tenant
) -> CallExplanation:
    """Add what a waiting call waits for."""
    ahead = _programs_ahead(entry, snapshot.calls, viewer)
    short_of = "kv_blocks" if snapshot.is_block_short else None
    return replace(
        explanation,
        programs_ahead=ahead[:MAX_AHEAD],
        more_programs_ahead=max(0, len(ahead) - MAX_AHEAD),
        short_of="slots" if snapshot.running >= snapshot.slots else short_of,
    )


def _with_preemption(
    explanation: CallExplanation,
    entry: CallSnapshot,
    snapshot: EngineSnapshot,
    config: SchedulerConfig,
    viewer: Tenant,
) -> CallExplanation:
    """Add which calls can take a running call's slot."""
    has_levels = explanation.level_min_s is not None
    # Arrivals of its own level queue behind it. Between tenants levels do not count.
    if config.preemption == "never" or not has_levels or entry.level == 1 or viewer.name:
        return explanation
    calls = max(1, snapshot.slots - entry.place + 1)
    return replace(explanation, preempted_by_level=entry.level - 1, preempted_after_calls=calls)


def _programs_ahead(
    entry: CallSnapshot, calls: Iterable[CallSnapshot], viewer: Tenant
) -> tuple[ProgramAhead, ...]:
    """Return the other programs with calls before this one, in the engine's order."""
    found: dict[str, ProgramAhead] = {}
    for other in calls:
        if other.place >= entry.place:
            break
        if other.program_id == entry.program_id:
            continue
        if known := found.get(other.program_id):
            found[other.program_id] = replace(known, calls=known.calls + 1)
            continue
        is_visible = viewer.is_admin or viewer.owns(other.program_id)
        found[other.program_id] = ProgramAhead(
            program_id=viewer.shown(other.program_id) if is_visible else None,
            level=other.level,
            service_s=other.program_service_s if is_visible else None,
            calls=1,
        )
    return tuple(found.values())
