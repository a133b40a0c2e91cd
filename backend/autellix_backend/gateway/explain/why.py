"""Why a program is not further: the scheduler's decision about each of its open calls, in words and numbers.

Pure: a program, the open calls and the engines' last snapshots go in, the explanation comes out. It is as old
as the snapshot that it rests on, and says how old that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.snapshot import CallStanding, EngineSnapshot
from autellix_backend.gateway.explain.situation import (
    CallState,
    EngineView,
    OpenCallView,
    ProgramState,
    Situation,
)
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.durations import seconds
from autellix_backend.stores.base import ProgramView

MAX_AHEAD = 5
"""Programs ahead that are named; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """A program with calls before a waiting one."""

    program_id: str | None
    """None for another tenant's, whose service is not told either."""
    level: int
    """Of its first call."""
    service_s: float | None
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWhy:
    """Where one call is and why; None where the engine has not told or it does not apply."""

    call_id: str
    thread_id: str
    engine: str
    state: str
    text: str
    open_s: float
    """Since it came to the gateway."""
    since_s: float | None = None
    """Since when it has been running or waiting."""
    level: int | None = None
    level_from_s: float | None = None
    level_to_s: float | None = None
    """The service that the level holds; no end in the last."""
    inherited_service_s: float | None = None
    """What its program had used when it came, as the policy counts."""
    service_s: float | None = None
    """What it has used itself."""
    place: int | None = None
    ahead: tuple[Ahead, ...] = ()
    more_ahead: int = 0
    """Programs ahead beside those named."""
    short_of: str | None = None
    """What it waits for: `slots` or `kv_blocks`."""
    promotion_s: float | None = None
    """Seconds of further waiting until anti-starvation lifts it into the first level."""
    quantum_s: float | None = None
    """Service after which it sinks to the next level."""
    yields_to_level: int | None = None
    """A running call: arrivals up to this level go before it."""
    yields_after: int | None = None
    """A running call: with so many of them it loses its slot, where that is worth its price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramWhy:
    """A program's state, and why each of its open calls is where it is."""

    program_id: str
    name: str | None
    state: str
    policy: str
    text: str
    idle_s: float | None
    snapshot_age_s: float | None
    """The age of the oldest snapshot that this rests on."""
    calls: tuple[CallWhy, ...]


def explain_program(
    view: ProgramView, situation: Situation, config: SchedulerConfig, viewer: Tenant, now: float
) -> ProgramWhy:
    """Explain a program.

    Args:
        view: The program, as the store has it.
        situation: The open calls and the engines.
        config: The configuration of the engines' schedulers.
        viewer: Who asks; other tenants' programs stay nameless.
        now: The time on the store's clock.
    """
    state = situation.program_state(view)
    calls = situation.calls_of(view.program_id)
    ages = [
        engine.age_s
        for engine in (situation.engines.get(name) for name in dict.fromkeys(call.engine for call in calls))
        if engine is not None and engine.age_s is not None
    ]
    return ProgramWhy(
        program_id=viewer.shown(view.program_id),
        name=view.name,
        state=state,
        policy=config.policy,
        text=_program_text(view, state, config, viewer, now),
        idle_s=now - view.last_event_s if state is ProgramState.IDLE else None,
        snapshot_age_s=max(ages, default=None),
        calls=tuple(explain_call(call, situation, config, viewer) for call in calls),
    )


def explain_call(
    call: OpenCallView, situation: Situation, config: SchedulerConfig, viewer: Tenant
) -> CallWhy:
    """Explain one open call."""
    engine = situation.engines.get(call.engine)
    standing = situation.standing(call)
    state = situation.state_of(call)
    if state is CallState.HELD:
        return _outside(call, state, f"The gateway holds it back: {call.held}.")
    if standing is None or engine is None or engine.snapshot is None:
        return _outside(call, state, _untold(call, engine))
    if standing.is_running:
        return _running(call, standing, engine.snapshot, config, viewer)
    return _waiting(call, standing, engine.snapshot, config, viewer)


def level_bounds(config: SchedulerConfig, level: int) -> tuple[float, float | None] | None:
    """Return the service (s) that a level holds, without an end in the last; None where levels hold none."""
    if not make_policy(config.policy).has_levels:
        return None
    edges: tuple[float | None, ...] = (0.0, *config.bounds, None)
    return edges[level - 1] or 0.0, edges[level]


def _program_text(
    view: ProgramView, state: ProgramState, config: SchedulerConfig, viewer: Tenant, now: float
) -> str:
    used = f"It has used {seconds(view.service_s)} of service as policy {config.policy} counts"
    used += f" and waited {seconds(view.wait_s)} over {_count(view.finished_calls, 'finished call')}."
    if state is ProgramState.IDLE:
        idle = f"No call is open: its client has sent none for {seconds(now - view.last_event_s)}."
        return f"{idle} {_tools(view)} {used}"
    order = make_policy(config.policy).rule
    if viewer.name:
        order = f"the tenant furthest behind its share goes first; within it {order}"
    ending = "It was ended and goes with its last call. " if state is ProgramState.ENDING else ""
    return f"{ending}{used} With policy {config.policy} {order}."


def _tools(view: ProgramView) -> str:
    if not view.last_interceptions:
        return "What runs in between shows with its next call."
    tools = ", ".join(f"{tool} ({seconds(duration_s)})" for tool, duration_s in view.last_interceptions)
    return f"What runs in between shows with its next call; before its last one ran {tools}."


def _outside(call: OpenCallView, state: CallState, text: str) -> CallWhy:
    return CallWhy(
        call_id=call.call_id,
        thread_id=call.thread_id,
        engine=call.engine,
        state=state,
        text=text,
        open_s=call.open_s,
        inherited_service_s=call.entry_service_s,
        level=call.level,
    )


def _untold(call: OpenCallView, engine: EngineView | None) -> str:
    sent = f"It was sent to {call.engine} {seconds(call.open_s)} ago"
    if engine is None:
        return f"{sent}; nothing more is known."
    if engine.failure is not None:
        return f"{sent}, which is down: {engine.failure}."
    if not engine.sends_snapshots:
        return f"{sent}, an engine that tells nothing of its queues."
    if engine.snapshot is None or engine.age_s is None:
        return f"{sent}, which has not told of its queues yet."
    age = seconds(engine.age_s)
    if engine.snapshot.left_out:
        told = _count(len(engine.snapshot.calls), "call")
        return f"{sent} and stands behind the first {told} in its order, those it told of {age} ago."
    return f"{sent}, which told of its queues {age} ago, without this call in them."


def _waiting(
    call: OpenCallView,
    standing: CallStanding,
    snapshot: EngineSnapshot,
    config: SchedulerConfig,
    viewer: Tenant,
) -> CallWhy:
    ahead = _ahead(standing, snapshot.calls, viewer)
    short_of = _shortage(snapshot)
    named, more = ahead[:MAX_AHEAD], max(0, len(ahead) - MAX_AHEAD)
    where = f"It has waited {seconds(standing.since_s)}{_before(standing)} in {call.engine},"
    load = f"{_count(snapshot.running, 'call')} {_verb(snapshot.running, 'run')}, {snapshot.slots} at most."
    sentences = (
        f"{where} {_placed(standing, config)} and is number {standing.place} in the order; {load}",
        _ahead_text(named, more),
        _shortage_text(short_of, snapshot),
        _promotion_text(standing, config),
    )
    return _inside(
        call,
        standing,
        config,
        text=" ".join(filter(None, sentences)),
        ahead=named,
        more_ahead=more,
        short_of=short_of,
    )


def _running(
    call: OpenCallView,
    standing: CallStanding,
    snapshot: EngineSnapshot,
    config: SchedulerConfig,
    viewer: Tenant,
) -> CallWhy:
    has_levels = level_bounds(config, standing.level) is not None
    # Arrivals of its own level queue behind it. Between tenants levels do not count.
    can_yield = config.preemption != "never" and has_levels and standing.level > 1 and not viewer.name
    level = standing.level - 1 if can_yield else None
    after = max(1, snapshot.slots - standing.place + 1) if level is not None else None
    where = f"It has been running for {seconds(standing.since_s)}{_before(standing)} in {call.engine},"
    sentences = [f"{where} {_placed(standing, config)}, as number {standing.place} in the order."]
    if level is not None and after is not None:
        lower = f"level {level} or lower" if level > 1 else "level 1"
        loses = "loses" if config.preemption == "always" else "can lose"
        sentences.append(
            f"It {loses} its slot once {_count(after, 'more call')} of {lower} {_verb(after, 'wait')}."
        )
    if standing.quantum_s is not None and has_levels and config.demotes:
        rest = f"After {seconds(max(0.0, standing.quantum_s))} more of service"
        sentences.append(f"{rest} it sinks to level {standing.level + 1}.")
    text = " ".join(sentences)
    return _inside(call, standing, config, text=text, yields_to_level=level, yields_after=after)


def _inside(
    call: OpenCallView,
    standing: CallStanding,
    config: SchedulerConfig,
    *,
    text: str,
    ahead: tuple[Ahead, ...] = (),
    more_ahead: int = 0,
    short_of: str | None = None,
    yields_to_level: int | None = None,
    yields_after: int | None = None,
) -> CallWhy:
    bounds = level_bounds(config, standing.level)
    return CallWhy(
        call_id=call.call_id,
        thread_id=call.thread_id,
        engine=call.engine,
        state=CallState.RUNNING if standing.is_running else CallState.WAITING,
        text=text,
        open_s=call.open_s,
        since_s=standing.since_s,
        level=standing.level,
        level_from_s=bounds[0] if bounds else None,
        level_to_s=bounds[1] if bounds else None,
        inherited_service_s=standing.inherited_service_s,
        service_s=standing.service_s,
        place=standing.place,
        ahead=ahead,
        more_ahead=more_ahead,
        short_of=short_of,
        promotion_s=standing.promotion_s,
        quantum_s=standing.quantum_s,
        yields_to_level=yields_to_level,
        yields_after=yields_after,
    )


def _ahead(standing: CallStanding, calls: Iterable[CallStanding], viewer: Tenant) -> tuple[Ahead, ...]:
    """Return the other programs with calls before this one, in their order."""
    found: dict[str, Ahead] = {}
    for other in calls:
        if other.place >= standing.place:
            break
        if other.program_id == standing.program_id:
            continue
        known = found.get(other.program_id)
        is_visible = viewer.is_admin or viewer.owns(other.program_id)
        found[other.program_id] = Ahead(
            program_id=viewer.shown(other.program_id) if is_visible else None,
            level=known.level if known else other.level,
            service_s=other.program_service_s if is_visible else None,
            calls=known.calls + 1 if known else 1,
        )
    return tuple(found.values())


def _shortage(snapshot: EngineSnapshot) -> str | None:
    if snapshot.running >= snapshot.slots:
        return "slots"
    return "kv_blocks" if snapshot.is_block_short else None


def _before(standing: CallStanding) -> str:
    """Say what came before its present turn, if it is not the first."""
    if not standing.preemptions:
        return ""
    return (
        f" ({seconds(standing.wait_s)} of waiting in all, preempted {_count(standing.preemptions, 'time')})"
    )


def _placed(standing: CallStanding, config: SchedulerConfig) -> str:
    bounds = level_bounds(config, standing.level)
    inherited = f"its program had used {seconds(standing.inherited_service_s)} when it came"
    if standing.service_s:
        inherited += f" and it {seconds(standing.service_s)} since"
    if bounds is None:
        return f"its policy has no levels of service ({inherited})"
    low, high = bounds
    if high is None:
        span = f"{seconds(low)} of service and more"
    else:
        span = f"{seconds(low)} to {seconds(high)} of service" if low else f"below {seconds(high)} of service"
    lifted = ", lifted by anti-starvation" if standing.promotions and standing.level == 1 else ""
    return f"in level {standing.level} of {config.level_count} ({span}{lifted}; {inherited})"


def _ahead_text(named: tuple[Ahead, ...], more: int) -> str:
    if not named:
        return "No other program is ahead."
    programs = ", ".join(map(_ahead_words, named))
    return f"Ahead of it: {programs}{f' and {more} more' if more else ''}."


def _ahead_words(item: Ahead) -> str:
    calls = _count(item.calls, "call")
    if item.program_id is None or item.service_s is None:
        return f"another tenant's program (level {item.level}, {calls})"
    return f"{item.program_id} (level {item.level}, {seconds(item.service_s)}, {calls})"


def _shortage_text(short_of: str | None, snapshot: EngineSnapshot) -> str:
    if short_of == "slots":
        return f"All {_count(snapshot.slots, 'slot')} are taken."
    if short_of == "kv_blocks":
        used = f"{snapshot.kv_used_blocks} of {snapshot.kv_total_blocks}"
        return f"Slots are free, but KV blocks are short: {used} are in use."
    return "Neither slots nor KV blocks were short: it should run in one of the next steps."


def _promotion_text(standing: CallStanding, config: SchedulerConfig) -> str:
    if standing.promotion_s is None:
        return ""
    lifted = f"Anti-starvation (beta {config.beta:g}) lifts it into level 1"
    if standing.promotion_s == 0:
        return f"{lifted} at the next decision."
    return f"{lifted} after {seconds(standing.promotion_s)} more of waiting."


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
