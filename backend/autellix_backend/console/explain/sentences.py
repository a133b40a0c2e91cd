"""Explanations in words: sentences about a program and its engine, and about where one of its calls is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autellix_backend.console.explain.explanations import CallExplanation, ProgramAhead
from autellix_backend.console.explain.overview import CallPlace
from autellix_backend.core.balance import Placement
from autellix_backend.core.boost import ONE_SIZE_SPREAD
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.calls.call import OWN_PREFIX, GatewayCall
from autellix_backend.gateway.engines.inactive import Inactive
from autellix_backend.gateway.engines.view import EngineView
from autellix_backend.identity.prefix_breaks import Kind
from autellix_backend.observe.durations import seconds
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.states import ProgramState
from autellix_backend.reports.snapshot import BoostSnapshot, CallSnapshot, EngineSnapshot
from autellix_backend.stores.base import ProgramView
from autellix_wire.flags import IMPLICIT

LEAST_HEAD_START_S = 0.05
"""Shorter ones are not stated."""


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
    place: CallPlace,
    wait_s: float,
    config: SchedulerConfig,
    *,
    has_tenants: bool,
) -> str:
    """Return what a program has used, and what orders its calls or how long it has had none."""
    # Calls wait side by side, so the sum may exceed the program's age.
    is_one = view.finished_calls + view.active_calls < 2
    waited = (
        f"it has waited {seconds(wait_s)}" if is_one else f"its calls have waited {seconds(wait_s)} in all"
    )
    if view.finished_calls:
        finished = (
            f"{_count(view.finished_calls, 'call')} {'has' if view.finished_calls == 1 else 'have'} finished"
        )
        used = f"{finished}; it has used {seconds(view.service_s)} of engine time, and {waited}."
    else:
        used = f"No call has finished yet; {waited}."
    if place.state is ProgramState.BETWEEN_CALLS:
        return joined(f"No call has been open for {seconds(place.state_s)}.", _tools_text(view, place), used)
    order = f"olicy {config.policy}: {make_policy(config.policy).rule}."
    first = "The tenant furthest behind its share goes first; within a tenant, p" if has_tenants else "P"
    ending = "It was ended and leaves when its last open call finishes." if view.is_ending else ""
    return joined(ending, used, first + order)


def elsewhere_text(number: int, place: CallPlace) -> str:
    """Return where a program's calls are that came through other gateways; empty if there are none."""
    if number <= 0:
        return ""
    came = f"{_count(number, 'open call')} came through another gateway"
    if place.state is not ProgramState.AT_ANOTHER_GATEWAY:
        return f"{came}."
    return f"{came}, and no engine shows {'it' if number == 1 else 'them'}: ask that gateway."


def placement_text(placement: Placement | None) -> str:
    """Return why a program is on its engine; empty if memory was not the reason."""
    if placement is None:
        return ""
    engine, context = placement.engine, f"its {placement.context_tokens:,}-token context"
    shared = ""
    if placement.shared_tokens:
        shared = f"; it shares {placement.shared_tokens:,} more tokens with programs there"
    wait = f"would wait about {seconds(placement.wait_s)} for memory" if placement.wait_s else "fits at once"
    if placement.left is None:
        return f"It was placed on {engine}, where {context} {wait}{shared}."
    moved = f"It was moved from {placement.left} to {engine}"
    if placement.left_wait_s <= placement.wait_s:
        return f"{moved}: calls waited longer on {placement.left} than {context} takes to recompute."
    waited = f"would have waited {seconds(placement.left_wait_s)} for memory on {placement.left}"
    return f"{moved}: {context} {waited} and {wait} on {engine}{shared}."


def sent_text(call: GatewayCall, engine: EngineView | None, place: CallPlace) -> str:
    """Return what is known of a call that its engine's last snapshot does not show."""
    sent = f"Sent to {call.engine} {seconds(place.state_s)} ago"
    if engine is None:
        return f"{sent}; that engine has left the pool."
    if engine.failure is not None:
        return f"{sent}; that engine is down: {engine.failure}."
    if call.reports:
        return f"{sent}; the engine has finished it, and its answer is on the way."
    if not engine.sends_snapshots:
        return f"{sent}; {engine.silence}."
    if engine.snapshot is not None and engine.snapshot.left_out:
        return f"{sent}; it waits behind the first {_count(len(engine.snapshot.calls), 'call')} there."
    return f"{sent}; the engine has not reported it yet."


def inactive_text(inactive: Inactive) -> str:
    """Return why the calls of a program wait for KV memory."""
    return f"It waits for KV memory: {inactive.text}."


def waiting_text(
    explanation: CallExplanation, entry: CallSnapshot, snapshot: EngineSnapshot, config: SchedulerConfig
) -> str:
    """Return why a call waits in its engine."""
    facts = [
        f"position {entry.place} of {snapshot.running + snapshot.waiting}",
        *_history(explanation, entry),
    ]
    return joined(
        f"It has waited {seconds(explanation.state_s)} at {explanation.engine} ({', '.join(facts)}).",
        _level_text(explanation, entry, config),
        _ahead_text(explanation),
        _shortage_text(explanation.short_of, snapshot),
        _promotion_text(entry, config),
    )


def running_text(explanation: CallExplanation, entry: CallSnapshot, config: SchedulerConfig) -> str:
    """Return how long a call has been running, and what can end that."""
    facts = _history(explanation, entry)
    history = f" ({', '.join(facts)})" if facts else ""
    return joined(
        f"It has been in {explanation.engine} for {seconds(explanation.state_s)}{history}.",
        _level_text(explanation, entry, config),
        _preemption_text(explanation, config),
        _demotion_text(explanation, config),
    )


def priority_text(priority: Priority, config: SchedulerConfig) -> str:
    """Return what a priority changes for a call's program; empty for the default one."""
    if priority is Priority.DEFAULT:
        return ""
    stated = f"Its priority is {priority}"
    gives_way = priority is Priority.BATCH and config.has_admission
    memory = "it leaves KV memory to other programs of its tenant" if gives_way else ""
    if not make_policy(config.policy).boosts:
        order = f"policy {config.policy} orders calls without it"
    else:
        minutes = priority.head_start_s / 60
        when = f"{minutes:g} minutes earlier" if minutes > 0 else f"{-minutes / 60:g} hours later"
        order = f"its program counts as having arrived {when}"
    return f"{stated}: {order}{f', and {memory}' if memory else ''}."


def return_text(
    return_s: float | None, snapshot: EngineSnapshot | None, config: SchedulerConfig, after: str = "this one"
) -> str:
    """Return what an expected return changes, by an engine's snapshot; empty for a call that states none."""
    if return_s is None:
        return ""
    stated = f"Its client expects the next call {seconds(return_s)} after {after}"
    if not config.has_admission:
        return f"{stated}, which nothing depends on without admission."
    hold_s = None if snapshot is None else snapshot.hold_s
    if hold_s is None:
        return f"{stated}."
    if return_s > hold_s:
        worth = f"more than the {seconds(hold_s)} for which its context is worth keeping"
        return f"{stated}, {worth}: it makes way at once while others wait for memory."
    return f"{stated}: while others wait for memory, its context is kept for up to {seconds(hold_s)}."


def retention_text(retain_s: float | None, snapshot: EngineSnapshot | None, config: SchedulerConfig) -> str:
    """Return what a stated retention changes, by an engine's snapshot; empty for a call that states none."""
    if retain_s is None:
        return ""
    stated = f"Its client wants its context kept for {seconds(retain_s)} after it at most"
    if not config.has_admission:
        return f"{stated}, which nothing depends on without admission."
    hold_s = None if snapshot is None else snapshot.hold_s
    if hold_s is None or retain_s <= hold_s:
        return f"{stated}."
    return f"{stated}: while others wait for memory, it is kept for up to {seconds(hold_s)}."


def stated_text(sources: Sequence[tuple[str, str]]) -> str:
    """Return the names by which a call states its hints, but for those of our own headers."""
    names = [source for _, source in sources if not source.lower().startswith(OWN_PREFIX)]
    return f"This is stated by {', '.join(names)}." if names else ""


_BREAKS = {
    Kind.TOOLS: "the request's tools differ from those of the call before, at {}",
    Kind.TOOL_ORDER: "its tools stand in another order than in the call before, from {} on",
    Kind.SYSTEM: "its system prompt differs from that of the call before, at {}",
    Kind.TIMESTAMP: "only a time, a date or a number differs from the call before, at {}",
    Kind.BILLING_LINE: "only the billing line of Claude Code differs from the call before, at {}",
    Kind.CACHE_CONTROL: "a mark of the cache has moved, at {}, and nothing else differs",
    Kind.LATE_SYSTEM: "it goes on from the call before, but has a system message in its transcript, {}, "
    "which its server seems to put in front",
    Kind.MESSAGE: "an earlier message differs from the call before, at {}",
    Kind.COMPACTION: "its transcript leaves out messages of the call before, from {} on",
    Kind.SUB_AGENT: "it is another conversation of the program: a sub-agent without a thread of its own",
    Kind.MODEL: "it names another model or adapter than the call before",
    Kind.MOVED: "it went to another engine than the call before",
    Kind.MADE_WAY: "it goes on from the call before, but its program made way while it waited for KV memory",
    Kind.EVICTED: "it goes on from the call before, but calls of other programs needed the memory, or its "
    "model's template has changed earlier messages",
    Kind.UNEXAMINED: "so many calls missed theirs that this one was not compared with the call before",
}
"""Why a call left its prefix; the place is a path in its body."""


def prefix_text(call: SettledCall) -> str:
    """Return how much of its context a settled call found, and why not more."""
    found = call.prefix_break
    if found is not None:
        shares = f"{found.expected_tokens:,} of its {found.prompt_tokens:,} prompt tokens"
        reason = _BREAKS[Kind(found.kind)].format(found.path)
        return f"{shares} should have been found in the prefix cache, {found.found_tokens:,} were: {reason}."
    usage = call.engine_usage
    if usage is None or usage.cached_tokens is None:
        return "Its engine does not say how much of its prompt was in the prefix cache."
    return f"{usage.cached_tokens:,} of its {usage.prompt_tokens:,} prompt tokens were in the prefix cache."


def breaks_text(calls: Sequence[SettledCall]) -> str:
    """Return how many settled calls of a program left its prefix, and why the last did; empty without any."""
    broken = [call for call in calls if call.prefix_break is not None]
    if not broken:
        return ""
    last, count = broken[-1], _count(len(broken), "call")
    short = f"{count} found less of its context than there was, the last one {last.start.call_id}"
    return f"{short}: {prefix_text(last)}"


def boost_text(age_s: float, work: float, head_start_s: float | None, boost: BoostSnapshot) -> str:
    """Return how policy `boost` orders a call's program, of which the engine may not state the head start."""
    arrived = f"Its program arrived {seconds(age_s)} ago and has done {work:,.0f} tokens of work"
    if boost.strength_s <= 0:
        is_learnt = 0 < boost.spread <= ONE_SIZE_SPREAD
        known, unknown = "the programs that ended differ little in size", "too few have ended to tell"
        why = known if is_learnt else unknown
        return f"{arrived}. No program has a head start now: {why}."
    if head_start_s is None:
        return f"{arrived}; programs with little work get a head start."
    if head_start_s < LEAST_HEAD_START_S:
        return f"{arrived}: too much for a head start."
    return f"{arrived}: a head start of {seconds(head_start_s)} for little work."


def _tools_text(view: ProgramView, place: CallPlace) -> str:
    if place.tools:
        called = f"Its last answer called {', '.join(place.tools)}."
    else:
        called = "(A tool may be running; it shows with the next call.)"
    if not view.last_interceptions:
        return called
    tools = ", ".join(f"{tool} ({seconds(duration_s)})" for tool, duration_s in view.last_interceptions)
    return f"{called} Tools before its last call: {tools}."


def _history(explanation: CallExplanation, entry: CallSnapshot) -> list[str]:
    """Return what preemptions have cost a call; nothing without any."""
    if not entry.preemptions:
        return []
    waited = f"{seconds(explanation.wait_s)} of waiting in all"
    return [f"preempted {_count(entry.preemptions, 'time')}", waited]


def _level_text(explanation: CallExplanation, entry: CallSnapshot, config: SchedulerConfig) -> str:
    own, total = seconds(entry.service_s), seconds(entry.program_service_s + entry.service_s)
    used = f"Its program has used {total} of engine time."
    if entry.service_s:
        used = f"It has used {own} of engine time; its program {total} in all."
    if explanation.level_min_s is None:
        return used
    span = _span(explanation.level_min_s, explanation.level_max_s)
    level = f"queue level {entry.level} of {config.level_count} ({span} of engine time)"
    is_promoted = entry.promotions and entry.level == 1
    return f"{f'Anti-starvation promoted it to {level}' if is_promoted else f'It is in {level}'}. {used}"


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
        facts.append(f"{seconds(program.service_s)} of engine time")
    name = "another tenant's program" if program.program_id is None else program.program_id
    return f"{name} ({', '.join([*facts, _count(program.calls, 'call')])})"


def _shortage_text(short_of: str | None, snapshot: EngineSnapshot) -> str:
    if short_of == "slots":
        return f"All {snapshot.slots} slots are taken." if snapshot.slots > 1 else "The only slot is taken."
    if short_of == "kv_blocks":
        used = f"{snapshot.kv_used_blocks} of {snapshot.kv_total_blocks} blocks"
        return f"Slots are free, but KV memory is not: {used} are in use."
    return "Slots and KV blocks are free: it should start within a few steps."


def _promotion_text(entry: CallSnapshot, config: SchedulerConfig) -> str:
    if entry.promotion_s is None:
        return ""
    promotes = f"anti-starvation (beta {config.beta:g}) promotes it to level 1"
    if entry.promotion_s == 0:
        return f"At the next scheduling decision {promotes}."
    return f"After {seconds(entry.promotion_s)} more of waiting {promotes}."


def _preemption_text(explanation: CallExplanation, config: SchedulerConfig) -> str:
    level, calls = explanation.preempted_by_level, explanation.preempted_after_calls
    if level is None or calls is None:
        return ""
    levels = f"level {level} or better" if level > 1 else "level 1"
    is_preempted = "is preempted" if config.preemption == "always" else "can be preempted"
    wait = "waits" if calls == 1 else "wait"
    return f"It {is_preempted} when {_count(calls, 'more call')} of {levels} {wait}."


def _demotion_text(explanation: CallExplanation, config: SchedulerConfig) -> str:
    left_s = explanation.quantum_left_s
    if left_s is None or explanation.level_min_s is None or not config.demotes:
        return ""
    after = f"After {seconds(max(0.0, left_s))} more of engine time"
    return f"{after} it is demoted to level {explanation.level + 1}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
