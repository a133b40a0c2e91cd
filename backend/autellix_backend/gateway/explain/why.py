"""Why a program's open calls are where they are, in words and numbers.

Pure functions of a program, the open calls and the engines' last snapshots. An explanation is as old as the
snapshots behind it and states their age.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autellix_backend.core.balance import Placement
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.gateway.explain.overview import (
    EngineView,
    OpenCallState,
    Overview,
    ProgramState,
    ShownCall,
)
from autellix_backend.gateway.explain.placement import placement_text
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.durations import seconds
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView

MAX_AHEAD = 5
"""Programs ahead that are named; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAhead:
    """Another program whose calls precede a waiting call."""

    program_id: str | None
    """None, like the service, for another tenant's program."""
    level: int
    """Of its first call."""
    service_s: float | None
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExplanation:
    """Where a call is and why; None where the engine has not reported it or it does not apply."""

    call_id: str
    thread_id: str
    engine: str
    state: OpenCallState
    text: str
    open_s: float
    """Since its arrival at the gateway."""
    since_s: float | None = None
    """How long it has been running, or waiting in the engine."""
    level: int
    level_min_s: float | None = None
    """Attained service at which its queue level begins."""
    level_max_s: float | None = None
    """Attained service at which its queue level ends; None for the last."""
    inherited_service_s: float
    """Its program's attained service when it arrived, as the policy counts it."""
    service_s: float | None = None
    """Its own attained service."""
    position: int | None = None
    """In the engine's order of all its calls, running ones included; 1 is the first."""
    programs_ahead: tuple[ProgramAhead, ...] = ()
    more_programs_ahead: int = 0
    short_of: str | None = None
    """What a waiting call lacks: `slots`, `kv_blocks`, or `working_set` while its program is inactive."""
    promoted_in_s: float | None = None
    """Further waiting until anti-starvation promotes it to level 1."""
    quantum_left_s: float | None = None
    """Further service until it is demoted."""
    preempted_by_level: int | None = None
    """Waiting calls up to this level can take a running call's slot."""
    preempted_after_calls: int | None = None
    """How many more of them it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExplanation:
    """A program's state, and an explanation of each of its open calls."""

    program_id: str
    name: str | None
    state: ProgramState
    policy: str
    text: str
    idle_s: float | None
    snapshot_age_s: float | None
    """The age of the oldest snapshot used."""
    calls: tuple[CallExplanation, ...]


def explain_program(
    view: ProgramView,
    overview: Overview,
    config: SchedulerConfig,
    viewer: Tenant,
    placement: Placement | None = None,
) -> ProgramExplanation:
    """Explain a program and its open calls; programs of tenants other than the viewer stay anonymous.

    Args:
        view: The program.
        overview: The open calls and engines of the moment.
        config: The scheduler's configuration.
        viewer: Who asks.
        placement: Why the program is on its engine; None if its memory decided nothing.
    """
    state = overview.program_state(view)
    engines = overview.engines_of(view.program_id).values()
    ages = [engine.age_s for engine in engines if engine is not None and engine.age_s is not None]
    return ProgramExplanation(
        program_id=viewer.shown(view.program_id),
        name=view.name,
        state=state,
        policy=config.policy,
        text=" ".join(
            filter(
                None,
                (_program_text(view, state, config, viewer, overview.now), placement_text(placement)),
            )
        ),
        idle_s=overview.now - view.last_event_s if state is ProgramState.IDLE else None,
        snapshot_age_s=max(ages, default=None),
        calls=tuple(
            explain_call(call, overview, config, viewer) for call in overview.calls_of(view.program_id)
        ),
    )


def explain_call(
    call: ShownCall, overview: Overview, config: SchedulerConfig, viewer: Tenant
) -> CallExplanation:
    """Explain where an open call is."""
    engine, entry = overview.engines.get(call.engine), overview.in_engine(call)
    snapshot = overview.rank_of(call)
    why_queued, open_s = overview.why_queued(call), overview.now - call.began_s
    explanation = CallExplanation(
        call_id=call.start.call_id,
        thread_id=call.start.thread_id,
        engine=call.engine,
        state=overview.call_state(call),
        text=f"It is queued at the gateway: {why_queued}.",
        open_s=open_s,
        level=call.level,
        inherited_service_s=call.entry_service_s,
    )
    if why_queued is not None:
        return explanation
    if entry is None or snapshot is None:
        return replace(explanation, text=_sent_text(call.engine, engine, open_s))
    low_s, high_s = level_bounds(config, entry.level) or (None, None)
    explanation = replace(
        explanation,
        since_s=entry.since_s,
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
        explanation = replace(explanation, text=f"It is {inactive.text}.", short_of="working_set")
    else:
        explain = _explain_running if entry.is_running else _explain_waiting
        explanation = explain(explanation, entry, snapshot, config, viewer)
    boost = _boost_text(call, entry, snapshot, overview.now)
    return replace(explanation, text=" ".join(filter(None, (explanation.text, boost))))


def _inactive(entry: CallSnapshot, snapshot: EngineSnapshot) -> Inactive | None:
    """Return why a call's program is not active in its engine; None if it is."""
    if entry.is_admitted or entry.inactive_place is None or snapshot.admission is None:
        return None
    return Inactive(entry.context_tokens or 0, entry.inactive_place, snapshot.admission)


def _boost_text(call: ShownCall, entry: CallSnapshot, snapshot: EngineSnapshot, now: float) -> str:
    if snapshot.boost is None:
        return ""
    age_s = call.inherited.age_s + now - call.began_s
    came = f"Its program came {seconds(age_s)} ago, with {call.inherited.work:,.0f} tokens of work done"
    strength_s = snapshot.boost.strength_s
    if strength_s <= 0:
        return f"{came}; programs are of one size, so the order is that of arrival."
    if entry.counted_age_s is not None:
        came = f"{came}, and counts as having come {seconds(entry.counted_age_s)} ago"
    return f"{came}; little work counts as an earlier arrival, at a strength of {seconds(strength_s)}."


def level_bounds(config: SchedulerConfig, level: int) -> tuple[float, float | None] | None:
    """Return the attained service (s) at which a queue level begins and ends.

    The last level has no end, and a policy without levels of service no bounds.
    """
    if not make_policy(config.policy).has_levels:
        return None
    edges: tuple[float | None, ...] = (0.0, *config.bounds, None)
    return edges[level - 1] or 0.0, edges[level]


def _program_text(
    view: ProgramView, state: ProgramState, config: SchedulerConfig, viewer: Tenant, now: float
) -> str:
    attained = (
        f"It has attained {seconds(view.service_s)} of service, as policy {config.policy} counts it, "
        f"and waited {seconds(view.wait_s)} over {_count(view.finished_calls, 'finished call')}."
    )
    if state is ProgramState.IDLE:
        idle = f"It has had no open call for {seconds(now - view.last_event_s)}."
        return f"{idle} {_tools_text(view)} {attained}"
    order = f"Under policy {config.policy} {make_policy(config.policy).rule}."
    if viewer.name:
        order = f"The tenant furthest behind its share goes first. Within a tenant, u{order[1:]}"
    ending = "It was ended and leaves with its last open call. " if state is ProgramState.ENDING else ""
    return f"{ending}{attained} {order}"


def _tools_text(view: ProgramView) -> str:
    reported = "Tools that run between calls are reported with the next call"
    if not view.last_interceptions:
        return f"{reported}."
    tools = ", ".join(f"{tool} ({seconds(duration_s)})" for tool, duration_s in view.last_interceptions)
    return f"{reported}; before the last call ran {tools}."


def _sent_text(name: str, engine: EngineView | None, open_s: float) -> str:
    sent = f"It was sent to {name} {seconds(open_s)} ago"
    if engine is None:
        return f"{sent}; that engine has left the pool."
    if engine.failure is not None:
        return f"{sent}; that engine is down: {engine.failure}."
    if not engine.sends_snapshots:
        return f"{sent}; {engine.silence}."
    if engine.snapshot is None or engine.age_s is None:
        return f"{sent}; that engine has not reported its queue yet."
    snapshot = f"that engine's last snapshot, {seconds(engine.age_s)} old"
    if engine.snapshot.left_out:
        return f"{sent}; it is behind the first {_count(len(engine.snapshot.calls), 'call')} in {snapshot}."
    return f"{sent}; it is not in {snapshot}."


def _explain_waiting(
    explanation: CallExplanation,
    entry: CallSnapshot,
    snapshot: EngineSnapshot,
    config: SchedulerConfig,
    viewer: Tenant,
) -> CallExplanation:
    ahead = _programs_ahead(entry, snapshot.calls, viewer)
    named, more = ahead[:MAX_AHEAD], max(0, len(ahead) - MAX_AHEAD)
    short_of = _shortage(snapshot)
    sentences = (
        f"It has waited {_place_text(explanation, entry, snapshot)}.",
        _level_text(entry, config),
        _ahead_text(named, more, has_levels=level_bounds(config, entry.level) is not None),
        _shortage_text(short_of, snapshot),
        _promotion_text(entry, config),
    )
    return replace(
        explanation,
        text=" ".join(filter(None, sentences)),
        programs_ahead=named,
        more_programs_ahead=more,
        short_of=short_of,
    )


def _explain_running(
    explanation: CallExplanation,
    entry: CallSnapshot,
    snapshot: EngineSnapshot,
    config: SchedulerConfig,
    viewer: Tenant,
) -> CallExplanation:
    has_levels = level_bounds(config, entry.level) is not None
    sentences = [
        f"It has been running for {_place_text(explanation, entry, snapshot)}.",
        _level_text(entry, config),
    ]
    # Arrivals of its own level queue behind it. Between tenants levels do not count.
    if config.preemption != "never" and has_levels and entry.level > 1 and not viewer.name:
        level, calls = entry.level - 1, max(1, snapshot.slots - entry.place + 1)
        explanation = replace(explanation, preempted_by_level=level, preempted_after_calls=calls)
        levels = f"level {level} or better" if level > 1 else "level 1"
        verb = "is" if config.preemption == "always" else "can be"
        sentences.append(
            f"It {verb} preempted once {_count(calls, 'more call')} of {levels} {_verb(calls, 'wait')}."
        )
    if entry.quantum_s is not None and has_levels and config.demotes:
        rest = f"After {seconds(max(0.0, entry.quantum_s))} more of service"
        sentences.append(f"{rest} it is demoted to level {entry.level + 1}.")
    return replace(explanation, text=" ".join(sentences))


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


def _shortage(snapshot: EngineSnapshot) -> str | None:
    if snapshot.running >= snapshot.slots:
        return "slots"
    return "kv_blocks" if snapshot.is_block_short else None


def _place_text(explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot) -> str:
    history = ""
    if entry.preemptions:
        preempted = _count(entry.preemptions, "time")
        history = f" (preempted {preempted}, {seconds(entry.wait_s)} of waiting in total)"
    where = f"in {explanation.engine}, at position {entry.place} of {snapshot.running + snapshot.waiting}"
    return f"{seconds(entry.since_s)}{history} {where}"


def _level_text(entry: CallSnapshot, config: SchedulerConfig) -> str:
    bounds = level_bounds(config, entry.level)
    if bounds is None:
        where = f"Policy {config.policy} has no levels of attained service"
    else:
        where = f"queue level {entry.level} of {config.level_count} (attained service {_span(*bounds)})"
        is_promoted = entry.promotions and entry.level == 1
        where = f"Anti-starvation promoted it to {where}" if is_promoted else f"It is in {where}"
    attained = f"its program had attained {seconds(entry.inherited_service_s)} when it arrived"
    own = f", and it has attained {seconds(entry.service_s)} since" if entry.service_s else ""
    return f"{where}; {attained}{own}."


def _span(low_s: float, high_s: float | None) -> str:
    if high_s is None:
        return f"from {seconds(low_s)}"
    return f"{seconds(low_s)} to {seconds(high_s)}" if low_s else f"below {seconds(high_s)}"


def _ahead_text(named: tuple[ProgramAhead, ...], more: int, *, has_levels: bool) -> str:
    if not named:
        return "No other program is ahead of it."
    programs = ", ".join(_program_ahead_text(program, has_levels=has_levels) for program in named)
    others = f" and {_count(more, 'more program')}" if more else ""
    return f"Ahead of it: {programs}{others}."


def _program_ahead_text(program: ProgramAhead, *, has_levels: bool) -> str:
    facts = [f"level {program.level}"] if has_levels else []
    if program.service_s is not None:
        facts.append(f"{seconds(program.service_s)} of service")
    name = "another tenant's program" if program.program_id is None else program.program_id
    return f"{name} ({', '.join([*facts, _count(program.calls, 'call')])})"


def _shortage_text(short_of: str | None, snapshot: EngineSnapshot) -> str:
    if short_of == "slots":
        return f"All {_count(snapshot.slots, 'slot')} are taken."
    if short_of == "kv_blocks":
        used = f"{snapshot.kv_used_blocks} of {snapshot.kv_total_blocks} blocks"
        return f"Slots are free, but KV memory is short: {used} are in use."
    return "Slots and KV blocks are free: it should start within a few steps."


def _promotion_text(entry: CallSnapshot, config: SchedulerConfig) -> str:
    if entry.promotion_s is None:
        return ""
    promotes = f"Anti-starvation (beta {config.beta:g}) promotes it to level 1"
    if entry.promotion_s == 0:
        return f"{promotes} at the next scheduling decision."
    return f"{promotes} after {seconds(entry.promotion_s)} more of waiting."


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
