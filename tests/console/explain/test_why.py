"""The text and numbers that explain why a call waits or runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from tests.gateway.engine_reports import report_of
from tests.gateway.snapshots import NOW, open_call, overview, program, snapshot, standing
from tests.observe.settled_calls import settled_call

from autellix_backend.console.explain.explanations import CallExplanation, ProgramAhead
from autellix_backend.console.explain.overview import Overview
from autellix_backend.console.explain.why import MAX_AHEAD, explain_call, explain_program, level_bounds
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.identity.hints import StatedHints
from autellix_backend.reports.ranks import merge_ranks
from autellix_backend.reports.snapshot import AdmissionSnapshot, BoostSnapshot
from autellix_backend.stores.base import Inherited

CONFIG = SchedulerConfig(policy="plas", bounds=(1.0, 2.0, 8.0), beta=4.0)
FAST = standing("fast", place=1, level=1, is_running=True, program_service_s=0.1)
FAST_TOO = standing("fast", place=2, level=1, is_running=True, program_service_s=0.1)
MINE = standing("p", place=3, level=2)


def why(
    present: Overview, call: GatewayCall, config: SchedulerConfig = CONFIG, viewer: Tenant | None = None
) -> CallExplanation:
    return explain_call(call, present, config, viewer or Tenant())


def test_a_waiting_call_names_who_is_ahead_its_level_and_its_promotion() -> None:
    call = open_call("key-3")
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE)), call)

    assert told.programs_ahead == (ProgramAhead(program_id="fast", level=1, service_s=0.1, calls=2),)
    assert (told.state, told.level, told.level_min_s, told.level_max_s) == ("waiting_for_slot", 2, 1.0, 2.0)
    assert (told.position, told.more_programs_ahead, told.short_of, told.promoted_in_s) == (
        3,
        0,
        "slots",
        5.0,
    )
    assert told.text == (
        "It has waited 4.5 s at replica-0 (position 3 of 3). It is in queue level 2 of 4 (1.0 s to 2.0 s of "
        "engine time). Its program has used 1.4 s of engine time. Ahead of it: fast (level 1, 0.10 s of "
        "engine time, 2 calls). All 2 slots are taken. After 5.0 s more of waiting anti-starvation (beta 4) "
        "promotes it to level 1."
    )


def test_only_calls_of_its_own_data_parallel_rank_are_ahead() -> None:
    call = open_call("key-2")
    here = snapshot(FAST, standing("p", place=2, level=2), rank=1, running=1, waiting=1)
    elsewhere = snapshot(standing("far", place=1, level=1), rank=0, running=0, waiting=1)
    present = overview(call, last=merge_ranks([elsewhere, here]), ranks=(elsewhere, here))
    told = why(present, call)

    assert [item.program_id for item in told.programs_ahead] == ["fast"]
    assert "(position 2 of 2)." in told.text


def test_its_own_programs_calls_are_not_others_ahead() -> None:
    call = open_call("key-3")
    sibling = standing("p", place=1, level=2, is_running=True)
    told = why(overview(call, last=snapshot(sibling, FAST_TOO, MINE)), call)

    assert [item.program_id for item in told.programs_ahead] == ["fast"]


def test_other_tenants_programs_stay_nameless_except_for_an_admin() -> None:
    mine, other = standing("a/p", place=3, level=2), standing("b/secret", place=1, level=1)
    own = standing("a/fast", place=2, level=1)
    call = open_call("key-3", program_id="a/p")
    present = overview(call, last=snapshot(other, own, mine))
    told = why(present, call, viewer=Tenant(name="a"))

    assert [(ahead.program_id, ahead.service_s) for ahead in told.programs_ahead] == [
        (None, None),
        ("fast", 1.4),
    ]
    assert "another tenant's program (level 1, 1 call), fast (level 1, 1.4 s of engine time" in told.text
    assert "secret" not in repr(told)
    admin = why(present, call, viewer=Tenant(name="a", is_admin=True))
    assert [ahead.program_id for ahead in admin.programs_ahead] == ["b/secret", "fast"]


def test_between_tenants_the_share_comes_before_the_level() -> None:
    call = open_call("key-1", program_id="a/p")
    running = standing("a/p", place=1, level=2, is_running=True)
    present = overview(call, last=snapshot(running))
    told = explain_program(program("a/p"), present, CONFIG, Tenant(name="a"))

    assert told.program_id == "p"
    assert (
        "The tenant furthest behind its share goes first; within a tenant, policy plas: calls of the best"
        in told.text
    )
    assert (told.calls[0].preempted_by_level, told.calls[0].preempted_after_calls) == (None, None)


def test_a_long_queue_is_named_in_part_and_counted() -> None:
    others = [standing(f"p{place}", place=place, level=1) for place in range(1, 10)]
    call = open_call("key-10")
    told = why(overview(call, last=snapshot(*others, standing("p", place=10, level=2))), call)

    assert [item.program_id for item in told.programs_ahead] == ["p1", "p2", "p3", "p4", "p5"]
    assert (len(told.programs_ahead), told.more_programs_ahead) == (MAX_AHEAD, 4)
    assert "and 4 more programs." in told.text


@pytest.mark.parametrize(
    ("fields", "short_of", "words"),
    [
        ({}, "slots", "All 2 slots are taken."),
        ({"slots": 1}, "slots", "The only slot is taken."),
        (
            {"slots": 8, "is_block_short": True},
            "kv_blocks",
            "6 of 12 blocks are in use.",
        ),
        ({"slots": 8}, None, "it should start within a few steps"),
    ],
)
def test_the_scarce_resource_is_named(fields: dict[str, object], short_of: str | None, words: str) -> None:
    call = open_call("key-3")
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE, **fields)), call)

    assert told.short_of == short_of
    assert words in told.text


def test_a_call_that_is_due_is_promoted_at_the_next_decision() -> None:
    call = open_call("key-1")
    told = why(overview(call, last=snapshot(standing("p", place=1, level=2, promotion_s=0.0))), call)

    assert "At the next scheduling decision anti-starvation (beta 4) promotes it to level 1." in told.text
    assert "No other program is ahead of it." in told.text


def test_a_promoted_call_is_shown_as_such_without_a_further_promotion() -> None:
    lifted = standing("p", place=1, level=1, promotions=1, promotion_s=None, service_s=0.5)
    call = open_call("key-1")
    told = why(overview(call, last=snapshot(lifted)), call)

    assert "Anti-starvation promoted it to queue level 1 of 4 (below 1.0 s of engine time)." in told.text
    assert "It has used 0.50 s of engine time; its program 1.9 s in all." in told.text
    assert "beta" not in told.text


def test_a_running_call_shows_when_it_is_demoted_and_when_preempted() -> None:
    running = standing(
        "p", place=1, level=3, is_running=True, since_s=1.5, quantum_s=0.5, preemptions=2, wait_s=7.0
    )
    call = open_call("key-1")
    told = why(overview(call, last=snapshot(running, FAST_TOO)), call)

    assert (told.state, told.preempted_by_level, told.preempted_after_calls, told.quantum_left_s) == (
        "in_engine",
        2,
        2,
        0.5,
    )
    assert told.text == (
        "It has been in replica-0 for 1.8 s (preempted 2 times, 7.0 s of waiting in all). It is in queue "
        "level 3 of 4 (2.0 s to 8.0 s of engine time). Its program has used 1.4 s of engine time. It can be "
        "preempted when 2 more calls of level 2 or better wait. After 0.50 s more of engine time it is "
        "demoted to level 4."
    )


def test_no_call_is_ahead_of_a_running_call_of_the_first_level() -> None:
    call = open_call("key-1")
    told = why(overview(call, last=snapshot(FAST)), call)

    assert (told.preempted_by_level, told.preempted_after_calls) == (None, None)
    assert "preempted" not in told.text


@pytest.mark.parametrize(
    ("preemption", "words", "preempted_after_calls"),
    [("always", "It is preempted when 2 more calls", 2), ("never", "", None)],
)
def test_the_preemption_mode_changes_the_explanation(
    preemption: str, words: str, preempted_after_calls: int | None
) -> None:
    call = open_call("key-1")
    running = standing("p", place=1, level=3, is_running=True)
    config = replace(CONFIG, preemption=preemption)
    told = why(overview(call, last=snapshot(running, FAST_TOO)), call, config)

    assert told.preempted_after_calls == preempted_after_calls
    assert words in told.text
    assert ("preempted" in told.text) is bool(words)


def test_the_last_level_has_no_end() -> None:
    last = standing("p", place=1, level=4, is_running=True, quantum_s=None)
    call = open_call("key-1")
    told = why(overview(call, last=snapshot(last)), call)

    assert (told.level_min_s, told.level_max_s) == (8.0, None)
    assert "(from 8.0 s of engine time)." in told.text
    assert "demoted" not in told.text


def test_a_policy_without_levels_has_no_bounds() -> None:
    config = SchedulerConfig(policy="fcfs")
    call = open_call("key-3")
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE)), call, config)

    assert level_bounds(config, 1) is None
    assert (told.level_min_s, told.level_max_s) == (None, None)
    assert "queue level" not in told.text
    assert "Ahead of it: fast (0.10 s of engine time, 2 calls)." in told.text


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (overview(open_call(), sends_snapshots=False), "that engine does not report its queue."),
        (overview(open_call()), "Sent to replica-0 5.0 s ago; the engine has not reported it yet."),
        (
            overview(open_call(), failure="it ended with exit code 9"),
            "that engine is down: it ended with exit",
        ),
        (
            overview(open_call(sent_s=NOW - 0.39), last=snapshot()),
            "Sent to replica-0 0.39 s ago; the engine has not reported it yet.",
        ),
        (overview(open_call(reports=[report_of("key-1")])), "its answer is on the way."),
        (
            overview(open_call(), last=snapshot(FAST_TOO, left_out=7)),
            "it waits behind the first 1 call there.",
        ),
        (Overview((open_call(),), {}, NOW), "that engine has left the pool"),
        (
            overview(
                open_call(since_s=NOW - 3.0),
                is_queued=lambda _: True,
                why_queued=lambda _: "all 8 slots of e are taken",
            ),
            "It has waited 3.0 s at the gateway: all 8 slots of e are taken.",
        ),
    ],
)
def test_missing_engine_data_is_stated(present: Overview, words: str) -> None:
    (call,) = present.calls_of("p")
    assert isinstance(call, GatewayCall)
    told = why(present, call)

    assert words in told.text
    assert (told.position, told.programs_ahead, told.level) == (None, (), 2)


def test_a_program_between_calls_shows_since_when_and_its_tools() -> None:
    view = program(active_calls=0, last_interceptions=(("search", 0.5), ("bash", 120.0)))
    settled = [settled_call(asked_tools=("fetch",))]
    told = explain_program(view, overview(), CONFIG, Tenant(), settled=settled)

    assert (told.state, told.state_s, told.calls, told.snapshot_age_s) == ("between_calls", 20.0, (), None)
    assert (told.state_text, told.tools) == ("between calls (tool fetch)", ("fetch",))
    assert told.text == (
        "No call has been open for 20.0 s. Its last answer called fetch. Tools before its last call: search "
        "(0.50 s), bash (120 s). 3 calls have finished; it has used 1.4 s of engine time, "
        "and its calls have waited 2.0 s in all."
    )


ADMITTING = SchedulerConfig(policy="boost")
FOR_HOLD = ": while others wait for memory, its context is kept for up to 14.0 s."
AT_ONCE = (
    ", more than the 14.0 s for which its context is worth keeping: it makes way at once while others wait "
    "for memory."
)


@pytest.mark.parametrize(
    ("return_s", "hold_s", "words"),
    [(14.0, 14.0, f"14.0 s{{}}{FOR_HOLD}"), (90.0, 14.0, f"90.0 s{{}}{AT_ONCE}"), (90.0, None, "90.0 s{}.")],
)
def test_an_expected_return_is_explained_with_what_it_changes(
    return_s: float, hold_s: float | None, words: str
) -> None:
    call = open_call("key-3")
    call.start = structs.replace(call.start, hints=Hints(return_s=return_s))
    present = overview(call, last=snapshot(FAST, FAST_TOO, MINE, hold_s=hold_s))
    told = why(present, call, ADMITTING)
    assert told.expected_return_s == return_s
    assert f"Its client expects the next call {words.format(' after this one')}" in told.text

    settled = [settled_call(engine="replica-0", return_s=return_s)]
    idle = explain_program(
        program(active_calls=0), overview(last=snapshot(hold_s=hold_s)), ADMITTING, Tenant(), settled=settled
    )
    assert f"Its client expects the next call {words.format(' after its last one')}" in idle.text
    # With a call open, that one's expectation counts.
    both = explain_program(program(), present, ADMITTING, Tenant(), settled=settled)
    assert "expects" not in both.text


@pytest.mark.parametrize(
    ("retain_s", "words"),
    [
        (5.0, "kept for 5.0 s after it at most."),
        (
            90.0,
            "kept for 90.0 s after it at most: while others wait for memory, it is kept for up to 14.0 s.",
        ),
    ],
)
def test_a_retention_is_explained_with_its_bound_and_where_it_stands(retain_s: float, words: str) -> None:
    path = "agent_hint.cache_control.ttl"
    call = open_call("key-3")
    call.start = structs.replace(call.start, hints=Hints(retain_s=retain_s))
    stated = StatedHints(call.start.hints, (("retain_s", path), ("priority", "X-Autellix-Priority")))
    identity = structs.replace(call.request.identity, stated=stated)
    call.request = structs.replace(call.request, identity=identity)
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE, hold_s=14.0)), call, ADMITTING)
    assert told.retain_s == retain_s
    assert told.stated_by["retain_s"] == path
    assert f"Its client wants its context {words} This is stated by {path}." in told.text
    without = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE)), call)
    assert "at most, which nothing depends on without admission." in without.text


def test_an_expected_return_changes_nothing_without_admission() -> None:
    call = open_call("key-3")
    call.start = structs.replace(call.start, hints=Hints(return_s=5.0))
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE)), call)
    assert (
        "expects the next call 5.0 s after this one, which nothing depends on without admission." in told.text
    )
    settled = [settled_call(engine="gone", return_s=5.0)]
    idle = explain_program(program(active_calls=0), overview(), ADMITTING, Tenant(), settled=settled)
    assert "expects the next call 5.0 s after its last one." in idle.text


def test_a_program_between_calls_without_known_tools_is_explained() -> None:
    told = explain_program(program(active_calls=0, finished_calls=1), overview(), CONFIG, Tenant())

    assert told.text == (
        "No call has been open for 20.0 s. (A tool may be running; it shows with the next call.) "
        "1 call has finished; it has used 1.4 s of engine time, and it has waited 2.0 s."
    )


def test_a_program_whose_first_call_waits_shows_its_present_wait() -> None:
    view = program(finished_calls=0, service_s=0.0, wait_s=0.0)
    told = explain_program(view, overview(open_call("key-3"), last=snapshot(FAST, MINE)), CONFIG, Tenant())

    assert told.text.startswith("No call has finished yet; it has waited 4.5 s. Policy plas: calls of")
    assert told.wait_s == pytest.approx(4.5)


def test_the_wait_of_several_calls_is_said_to_be_theirs() -> None:
    view = program(finished_calls=0, active_calls=6)
    told = explain_program(view, overview(open_call("key-3"), last=snapshot(FAST, MINE)), CONFIG, Tenant())

    assert told.text.startswith(
        "5 open calls came through another gateway. "
        "No call has finished yet; its calls have waited 4.5 s in all. "
    )


def test_a_program_is_explained_call_by_call() -> None:
    calls = (open_call("key-3"), open_call("key-9"))
    present = overview(*calls, last=snapshot(FAST, FAST_TOO, MINE))
    told = explain_program(program(), present, CONFIG, Tenant())

    assert [call.state for call in told.calls] == ["waiting_for_slot", "waiting_for_slot"]
    assert (told.state, told.snapshot_age_s, told.policy) == ("waiting_for_slot", 0.3, "plas")
    assert "Policy plas: calls of the best queue level run first" in told.text


def test_an_ended_program_is_shown_as_such() -> None:
    told = explain_program(program(is_ending=True), overview(open_call()), CONFIG, Tenant())

    assert told.text.startswith("It was ended and leaves when its last open call finishes.")


def test_a_call_of_an_inactive_program_waits_for_memory() -> None:
    call = open_call("key-3")
    entry = standing("p", place=3, level=1, is_admitted=False, context_tokens=5200, inactive_place=3)
    last = snapshot(FAST, FAST_TOO, entry, admission=AdmissionSnapshot(11, 4, 48_000, 52_000))
    told = why(overview(call, last=last), call)

    assert (told.state, told.position, told.short_of) == ("waiting_for_memory", 3, "working_set")
    assert told.text == (
        "It waits for KV memory: it needs 5,200 tokens, 4,000 of 52,000 are free. 2 programs are ahead of it."
    )


def test_the_place_of_an_inactive_program_is_explained_by_its_boost() -> None:
    inherited = Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0, age_s=7.0, work=100.0)
    call = open_call("key-3", inherited=inherited)
    entry = standing(
        "p", place=3, level=1, is_admitted=False, context_tokens=9, inactive_place=1, counted_age_s=16.4
    )
    last = snapshot(
        FAST, FAST_TOO, entry, admission=AdmissionSnapshot(1, 1, 9, 10), boost=BoostSnapshot(3.0, 0.8, 4.0)
    )

    assert why(overview(call, last=last), call).text == (
        "It waits for KV memory: it needs 9 tokens, 1 of 10 are free. No program is ahead of it. Its program "
        "arrived 12.0 s ago and has done 100 tokens of work: a head start of 4.7 s for little work."
    )


@pytest.mark.parametrize(
    ("boost", "counted_age_s", "order"),
    [
        (BoostSnapshot(3.0, 0.8, 4.0), 13.4, ": a head start of 1.7 s for little work."),
        (BoostSnapshot(3.0, 0.8, 4.0), 11.7, ": too much for a head start."),
        (BoostSnapshot(3.0, 0.8, 4.0), None, "; programs with little work get a head start."),
        # Little spread among the programs that ended; not that all programs are equal.
        (
            BoostSnapshot(0.0, 0.3, 4.0),
            11.7,
            ". No program has a head start now: the programs that ended differ little in size.",
        ),
        (
            BoostSnapshot(0.0, 0.0, 0.0),
            11.7,
            ". No program has a head start now: too few have ended to tell.",
        ),
    ],
)
def test_the_boost_is_explained_as_a_head_start(
    boost: BoostSnapshot, counted_age_s: float | None, order: str
) -> None:
    inherited = Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0, age_s=7.0, work=1234.0)
    call = open_call("key-3", inherited=inherited)
    last = snapshot(FAST, FAST_TOO, standing("p", place=3, level=2, counted_age_s=counted_age_s), boost=boost)
    told = why(overview(call, last=last), call, SchedulerConfig(policy="boost"))

    assert told.text.endswith(f" Its program arrived 12.0 s ago and has done 1,234 tokens of work{order}")


def urgent_call(priority: str) -> GatewayCall:
    inherited = Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0, age_s=7.0, work=100.0)
    call = open_call("key-3", inherited=inherited)
    call.start = structs.replace(call.start, hints=Hints(priority=Priority(priority)))
    return call


@pytest.mark.parametrize(
    ("priority", "counted_age_s", "text"),
    [
        ("interactive", 616.4, "interactive: its program counts as having arrived 10 minutes earlier."),
        (
            "batch",
            16.4 - 86400.0,
            (
                "batch: its program counts as having arrived 24 hours later, and it leaves KV memory to "
                "other programs of its tenant."
            ),
        ),
    ],
)
def test_a_priority_is_explained_beside_the_boost(priority: str, counted_age_s: float, text: str) -> None:
    call = urgent_call(priority)
    entry = standing("p", place=3, level=1, counted_age_s=counted_age_s)
    last = snapshot(FAST, FAST_TOO, entry, boost=BoostSnapshot(3.0, 0.8, 4.0))
    told = why(overview(call, last=last), call, SchedulerConfig(policy="boost"))

    assert told.priority == priority
    assert told.text.endswith(
        f"Its priority is {text} Its program arrived 12.0 s ago and has done 100 tokens of work: a head "
        "start of 4.7 s for little work."
    )


def test_a_priority_that_changes_nothing_is_explained_too() -> None:
    call = urgent_call("batch")
    told = why(overview(call, last=snapshot(FAST, FAST_TOO, MINE)), call)

    assert "Its priority is batch: policy plas orders calls without it." in told.text
    plain = open_call("key-3")
    assert "priority" not in why(overview(plain, last=snapshot(FAST, FAST_TOO, MINE)), plain).text
