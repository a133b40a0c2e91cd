"""The words and numbers that say why a call is where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.snapshots import open_call, program, situation, snapshot, standing

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.explain.situation import OpenCallView, Situation
from autellix_backend.gateway.explain.why import (
    MAX_AHEAD,
    Ahead,
    CallWhy,
    explain_call,
    explain_program,
    level_bounds,
)
from autellix_backend.gateway.tenancy.tenants import Tenant

CONFIG = SchedulerConfig(policy="plas", bounds=(1.0, 2.0, 8.0), beta=4.0)
FAST = standing("fast", place=1, level=1, is_running=True, program_service_s=0.1)
FAST_TOO = standing("fast", place=2, level=1, is_running=True, program_service_s=0.1)
MINE = standing("p", place=3, level=2)


def why(
    present: Situation, call: OpenCallView, config: SchedulerConfig = CONFIG, viewer: Tenant | None = None
) -> CallWhy:
    return explain_call(call, present, config, viewer or Tenant())


def test_a_waiting_call_names_who_is_ahead_its_level_and_its_promotion() -> None:
    call = open_call("key-3")
    told = why(situation(call, told=snapshot(FAST, FAST_TOO, MINE)), call)

    assert told.ahead == (Ahead(program_id="fast", level=1, service_s=0.1, calls=2),)
    assert (told.state, told.level, told.level_from_s, told.level_to_s) == ("waiting", 2, 1.0, 2.0)
    assert (told.place, told.more_ahead, told.short_of, told.promotion_s) == (3, 0, "slots", 5.0)
    assert told.text == (
        "It has waited 4.2 s in replica-0, in level 2 of 4 (1.0 s to 2.0 s of service; its program had used "
        "1.4 s when it came) and is number 3 in the order; 2 calls run, 2 at most. Ahead of it: fast (level "
        "1, 0.10 s, 2 calls). All 2 slots are taken. Anti-starvation (beta 4) lifts it into level 1 after "
        "5.0 s more of waiting."
    )


def test_its_own_programs_calls_are_not_others_ahead() -> None:
    call = open_call("key-3")
    sibling = standing("p", place=1, level=2, is_running=True)
    told = why(situation(call, told=snapshot(sibling, FAST_TOO, MINE)), call)

    assert [item.program_id for item in told.ahead] == ["fast"]


def test_other_tenants_programs_stay_nameless_except_for_an_admin() -> None:
    mine, other = standing("a/p", place=3, level=2), standing("b/secret", place=1, level=1)
    own = standing("a/fast", place=2, level=1)
    call = open_call("key-3", program_id="a/p")
    present = situation(call, told=snapshot(other, own, mine))
    told = why(present, call, viewer=Tenant(name="a"))

    assert [(ahead.program_id, ahead.service_s) for ahead in told.ahead] == [(None, None), ("fast", 1.4)]
    assert "another tenant's program (level 1, 1 call), fast (level 1, 1.4 s, 1 call)" in told.text
    assert "secret" not in repr(told)
    admin = why(present, call, viewer=Tenant(name="a", is_admin=True))
    assert [ahead.program_id for ahead in admin.ahead] == ["b/secret", "fast"]


def test_between_tenants_the_share_comes_before_the_level() -> None:
    call = open_call("key-1", program_id="a/p")
    running = standing("a/p", place=1, level=2, is_running=True)
    present = situation(call, told=snapshot(running))
    told = explain_program(program("a/p"), present, CONFIG, Tenant(name="a"), 122.0)

    assert told.program_id == "p"
    assert "the tenant furthest behind its share goes first; within it calls of a" in told.text
    assert (told.calls[0].yields_to_level, told.calls[0].yields_after) == (None, None)


def test_a_long_queue_is_named_in_part_and_counted() -> None:
    others = [standing(f"p{place}", place=place, level=1) for place in range(1, 10)]
    call = open_call("key-10")
    told = why(situation(call, told=snapshot(*others, standing("p", place=10, level=2))), call)

    assert [item.program_id for item in told.ahead] == ["p1", "p2", "p3", "p4", "p5"]
    assert (len(told.ahead), told.more_ahead) == (MAX_AHEAD, 4)
    assert "and 4 more." in told.text


@pytest.mark.parametrize(
    ("fields", "short_of", "words"),
    [
        ({}, "slots", "All 2 slots are taken."),
        ({"slots": 8, "is_block_short": True}, "kv_blocks", "KV blocks are short: 6 of 12 are in use."),
        ({"slots": 8}, None, "it should run in one of the next steps"),
    ],
)
def test_what_is_short_is_said(fields: dict[str, object], short_of: str | None, words: str) -> None:
    call = open_call("key-3")
    told = why(situation(call, told=snapshot(FAST, FAST_TOO, MINE, **fields)), call)

    assert told.short_of == short_of
    assert words in told.text


def test_a_call_that_is_due_is_lifted_at_the_next_decision() -> None:
    call = open_call("key-1")
    told = why(situation(call, told=snapshot(standing("p", place=1, level=2, promotion_s=0.0))), call)

    assert "lifts it into level 1 at the next decision." in told.text
    assert "No other program is ahead." in told.text


def test_a_lifted_call_says_so_and_has_no_promotion_before_it() -> None:
    lifted = standing("p", place=1, level=1, promotions=1, promotion_s=None, service_s=0.5)
    call = open_call("key-1")
    told = why(situation(call, told=snapshot(lifted)), call)

    assert "level 1 of 4 (below 1.0 s of service, lifted by anti-starvation;" in told.text
    assert "and it 0.50 s since" in told.text
    assert "beta" not in told.text


def test_a_running_call_says_when_it_sinks_and_when_it_must_yield() -> None:
    running = standing(
        "p", place=1, level=3, is_running=True, since_s=1.5, quantum_s=0.5, preemptions=2, wait_s=7.0
    )
    call = open_call("key-1")
    told = why(situation(call, told=snapshot(running, FAST_TOO)), call)

    assert (told.state, told.yields_to_level, told.yields_after, told.quantum_s) == ("running", 2, 2, 0.5)
    assert told.text == (
        "It has been running for 1.5 s (7.0 s of waiting in all, preempted 2 times) in replica-0, in level 3 "
        "of 4 (2.0 s to 8.0 s of service; its program had used 1.4 s when it came), as number 1 in the "
        "order. It can lose its slot once 2 more calls of level 2 or lower wait. After 0.50 s more of "
        "service it sinks to level 4."
    )


def test_nobody_goes_before_a_running_call_of_the_first_level() -> None:
    call = open_call("key-1")
    told = why(situation(call, told=snapshot(FAST)), call)

    assert (told.yields_to_level, told.yields_after) == (None, None)
    assert "slot" not in told.text


@pytest.mark.parametrize(
    ("preemption", "words", "yields_after"), [("always", "It loses its slot", 2), ("never", "", None)]
)
def test_what_a_running_call_must_yield_is_a_setting(
    preemption: str, words: str, yields_after: int | None
) -> None:
    call = open_call("key-1")
    running = standing("p", place=1, level=3, is_running=True)
    config = replace(CONFIG, preemption=preemption)
    told = why(situation(call, told=snapshot(running, FAST_TOO)), call, config)

    assert told.yields_after == yields_after
    assert words in told.text
    assert ("slot" in told.text) is bool(words)


def test_the_last_level_has_no_end() -> None:
    last = standing("p", place=1, level=4, is_running=True, quantum_s=None)
    call = open_call("key-1")
    told = why(situation(call, told=snapshot(last)), call)

    assert (told.level_from_s, told.level_to_s) == (8.0, None)
    assert "(8.0 s of service and more;" in told.text
    assert "sinks" not in told.text


def test_a_policy_without_levels_has_no_bounds() -> None:
    config = SchedulerConfig(policy="fcfs")
    call = open_call("key-3")
    told = why(situation(call, told=snapshot(FAST, FAST_TOO, MINE)), call, config)

    assert level_bounds(config, 1) is None
    assert (told.level_from_s, told.level_to_s) == (None, None)
    assert "its policy has no levels of service" in told.text


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (situation(open_call(), sends_snapshots=False), "an engine that tells nothing of its queues"),
        (situation(open_call()), "which has not told of its queues yet"),
        (situation(open_call(), failure="it ended with exit code 9"), "which is down: it ended with exit"),
        (situation(open_call(), told=snapshot()), "told of its queues 0.30 s ago, without this call"),
        (
            situation(open_call(), told=snapshot(FAST_TOO, left_out=7)),
            "stands behind the first 1 call in its order, those it told of 0.30 s ago",
        ),
        (Situation((open_call(),), {}), "nothing more is known"),
        (
            situation(open_call(held="its tenant has 8 calls open, the most it may have")),
            "The gateway holds it back: its tenant has 8 calls open",
        ),
    ],
)
def test_what_the_engine_does_not_tell_is_admitted(present: Situation, words: str) -> None:
    told = why(present, open_call(held=present.calls_of("p")[0].held))

    assert words in told.text
    assert (told.place, told.ahead, told.level) == (None, (), 2)


def test_an_idle_program_says_since_when_and_which_tools_ran_last() -> None:
    view = program(active_calls=0, last_interceptions=(("search", 0.5), ("bash", 120.0)))
    told = explain_program(view, situation(), CONFIG, Tenant(), 122.0)

    assert (told.state, told.idle_s, told.calls, told.snapshot_age_s) == ("idle", 12.0, (), None)
    assert "its client has sent none for 12.0 s" in told.text
    assert "before its last one ran search (0.50 s), bash (120 s)" in told.text


def test_an_idle_program_without_known_tools_says_so() -> None:
    told = explain_program(program(active_calls=0), situation(), CONFIG, Tenant(), 122.0)

    assert "What runs in between shows with its next call. It has used 1.4 s" in told.text


def test_a_program_is_explained_call_by_call() -> None:
    calls = (open_call("key-3"), open_call("key-9"))
    present = situation(*calls, told=snapshot(FAST, FAST_TOO, MINE))
    told = explain_program(program(), present, CONFIG, Tenant(), 122.0)

    assert [call.state for call in told.calls] == ["waiting", "sent"]
    assert (told.state, told.snapshot_age_s, told.policy) == ("running", 0.3, "plas")
    assert "calls of a lower level go first" in told.text


def test_a_program_that_was_ended_says_so() -> None:
    told = explain_program(program(is_ending=True), situation(open_call()), CONFIG, Tenant(), 122.0)

    assert told.text.startswith("It was ended and goes with its last call.")
