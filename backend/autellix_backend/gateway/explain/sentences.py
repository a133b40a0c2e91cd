"""Explanations in words: sentences about a program and its engine, and about where one of its calls is."""

from __future__ import annotations

from collections.abc import Iterable

from autellix_backend.core.balance import Placement
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.explain.explanations import CallExplanation, ProgramAhead
from autellix_backend.gateway.explain.overview import EngineView, ProgramState
from autellix_backend.observe.durations import seconds
from autellix_backend.reports.snapshot import CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView
from autellix_wire.flags import IMPLICIT


def joined(*parts: str) -> str:
    """Return sentences as one text; empty ones are left out."""
    return " ".join(filter(None, parts))


def implicit_text(flags: Iterable[str]) -> str:
    """Return what an implicit program is, and how to open one; empty for other programs."""
    if IMPLICIT not in flags:
        return ""
    return (
        "It is implicit: its process made these calls outside of any program. "
        'To open one: `with autellix.program("name"):`.'
    )


def program_text(
    view: ProgramView,
    state: ProgramState,
    idle_s: float | None,
    config: SchedulerConfig,
    *,
    has_tenants: bool,
) -> str:
    """Return what a program has received, and what orders its calls or how long it has been idle."""
    attained = (
        f"It has attained {seconds(view.service_s)} of service, as policy {config.policy} counts it, "
        f"and waited {seconds(view.wait_s)} over {_count(view.finished_calls, 'finished call')}."
    )
    if idle_s is not None:
        return f"It has had no open call for {seconds(idle_s)}. {_tools_text(view)} {attained}"
    order = f"nder policy {config.policy} {make_policy(config.policy).rule}."
    first = "The tenant furthest behind its share goes first. Within a tenant, u" if has_tenants else "U"
    ending = "It was ended and leaves with its last open call." if state is ProgramState.ENDING else ""
    return joined(ending, attained, first + order)


def placement_text(placement: Placement | None) -> str:
    """Return why a program is on its engine; empty if memory was not the reason."""
    if placement is None:
        return ""
    engine, context = placement.engine, f"its {placement.context_tokens:,}-token context"
    wait = f"would wait about {seconds(placement.wait_s)} for memory" if placement.wait_s else "fits at once"
    shared = ""
    if placement.shared_tokens:
        shared = f"; {placement.shared_tokens:,} more tokens are shared with programs there"
    if placement.left is None:
        return f"It was placed on {engine}: {context} {wait} there{shared}."
    moved = f"It was moved from {placement.left} to {engine}"
    if placement.left_wait_s <= placement.wait_s:
        return f"{moved}: calls wait longer there than {context} takes to recompute."
    waited = f"would have waited {seconds(placement.left_wait_s)} for memory"
    rest = f"about {seconds(placement.wait_s)}" if placement.wait_s else "fits at once"
    return f"{moved}: {context} {waited} there, and here {rest}{shared}."


def sent_text(name: str, engine: EngineView | None, open_s: float) -> str:
    """Return what is known of a call that its engine's last snapshot does not show."""
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


def waiting_text(
    explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot, config: SchedulerConfig
) -> str:
    """Return why a call waits in its engine."""
    return joined(
        f"It has waited {_place_text(explanation, entry, snapshot)}.",
        _level_text(explanation, entry, config),
        _ahead_text(explanation),
        _shortage_text(explanation.short_of, snapshot),
        _promotion_text(entry, config),
    )


def running_text(
    explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot, config: SchedulerConfig
) -> str:
    """Return how long a call has been running, and what can end that."""
    return joined(
        f"It has been running for {_place_text(explanation, entry, snapshot)}.",
        _level_text(explanation, entry, config),
        _preemption_text(explanation, config),
        _demotion_text(explanation, config),
    )


def boost_text(age_s: float, work: float, counted_age_s: float | None, strength_s: float) -> str:
    """Return how policy `boost` counts a program's arrival."""
    arrived = f"Its program arrived {seconds(age_s)} ago, with {work:,.0f} tokens of work done"
    if strength_s <= 0:
        return f"{arrived}; programs do not differ in size, so they run in order of arrival."
    if counted_age_s is not None:
        arrived = f"{arrived}, and counts as having arrived {seconds(counted_age_s)} ago"
    return f"{arrived}; little work counts as an earlier arrival, at a strength of {seconds(strength_s)}."


def _tools_text(view: ProgramView) -> str:
    reported = "Tools that run between calls are reported with the next call"
    if not view.last_interceptions:
        return f"{reported}."
    tools = ", ".join(f"{tool} ({seconds(duration_s)})" for tool, duration_s in view.last_interceptions)
    return f"{reported}; before the last call ran {tools}."


def _place_text(explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot) -> str:
    history = ""
    if entry.preemptions:
        preempted = _count(entry.preemptions, "time")
        history = f" (preempted {preempted}, {seconds(entry.wait_s)} of waiting in total)"
    where = f"in {explanation.engine}, at position {entry.place} of {snapshot.running + snapshot.waiting}"
    return f"{seconds(entry.since_s)}{history} {where}"


def _level_text(explanation: CallExplanation, entry: CallSnapshot, config: SchedulerConfig) -> str:
    if explanation.level_min_s is None:
        where = f"Policy {config.policy} has no levels of attained service"
    else:
        span = _span(explanation.level_min_s, explanation.level_max_s)
        where = f"queue level {entry.level} of {config.level_count} (attained service {span})"
        is_promoted = entry.promotions and entry.level == 1
        where = f"Anti-starvation promoted it to {where}" if is_promoted else f"It is in {where}"
    attained = f"its program had attained {seconds(entry.inherited_service_s)} when it arrived"
    own = f", and it has attained {seconds(entry.service_s)} since" if entry.service_s else ""
    return f"{where}; {attained}{own}."


def _span(low_s: float, high_s: float | None) -> str:
    if high_s is None:
        return f"from {seconds(low_s)}"
    return f"{seconds(low_s)} to {seconds(high_s)}" if low_s else f"below {seconds(high_s)}"


def _ahead_text(explanation: CallExplanation) -> str:
    if not explanation.programs_ahead:
        return "No other program is ahead of it."
    has_levels = explanation.level_min_s is not None
    programs = ", ".join(_program_text(each, has_levels=has_levels) for each in explanation.programs_ahead)
    more = explanation.more_programs_ahead
    others = f" and {_count(more, 'more program')}" if more else ""
    return f"Ahead of it: {programs}{others}."


def _program_text(program: ProgramAhead, *, has_levels: bool) -> str:
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
        return f"Slots are free, but KV memory is scarce: {used} are in use."
    return "Slots and KV blocks are free: it should start within a few steps."


def _promotion_text(entry: CallSnapshot, config: SchedulerConfig) -> str:
    if entry.promotion_s is None:
        return ""
    promotes = f"Anti-starvation (beta {config.beta:g}) promotes it to level 1"
    if entry.promotion_s == 0:
        return f"{promotes} at the next scheduling decision."
    return f"{promotes} after {seconds(entry.promotion_s)} more of waiting."


def _preemption_text(explanation: CallExplanation, config: SchedulerConfig) -> str:
    level, calls = explanation.preempted_by_level, explanation.preempted_after_calls
    if level is None or calls is None:
        return ""
    levels = f"level {level} or better" if level > 1 else "level 1"
    is_preempted = "is preempted" if config.preemption == "always" else "can be preempted"
    wait = "waits" if calls == 1 else "wait"
    return f"It {is_preempted} once {_count(calls, 'more call')} of {levels} {wait}."


def _demotion_text(explanation: CallExplanation, config: SchedulerConfig) -> str:
    left_s = explanation.quantum_left_s
    if left_s is None or explanation.level_min_s is None or not config.demotes:
        return ""
    after = f"After {seconds(max(0.0, left_s))} more of service"
    return f"{after} it is demoted to level {explanation.level + 1}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
