"""Working sets: where programs fit, when they move, and what is remembered of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autellix_backend.core.balance import EngineLoad, FinishedCall, Placement
from autellix_backend.core.balance.base import ArrivingCall
from autellix_backend.core.balance.bounded import LocalityBounded
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.balance.working_set import MAX_UNSEEN_REPORTS, WorkingSet

CAPACITY = 10_000
CONTEXT = 4000
IDLE = EngineLoad(
    name="a", running=0, waiting=0, slots=8, prefill_s_per_token=0.0001, decode_s_per_token=0.015
)
OTHER = replace(IDLE, name="b")


@pytest.fixture
def balancer() -> Iterator[WorkingSet]:
    """A balancer whose invariants are checked at the end."""
    made = WorkingSet()
    yield made
    made.check()


def report(used: int = 0, waiting: int = 0, **fields: Any) -> MemoryReport:
    """Return the report of an engine whose programs have contexts of 1,000 tokens."""
    defaults: dict[str, Any] = {
        "capacity_tokens": CAPACITY,
        "active_tokens": used,
        "active_programs": used // 1000,
        "inactive_tokens": waiting,
        "inactive_calls": waiting // 1000,
        "between_ends_s": 4.0,
    }
    return MemoryReport(**(defaults | fields))


def finished(program_id: str, engine: str, prompt_tokens: int, cached_tokens: int) -> FinishedCall:
    return FinishedCall(
        program_id=program_id,
        engine=engine,
        prompt_tokens=prompt_tokens,
        output_tokens=100,
        cached_tokens=cached_tokens,
    )


def a(memory: MemoryReport | None = None, **changes: Any) -> EngineLoad:
    """Return engine a, with all its memory free unless a report says otherwise."""
    return replace(IDLE, memory=memory or report(), **changes)


def b(memory: MemoryReport | None = None, **changes: Any) -> EngineLoad:
    return replace(OTHER, memory=memory or report(), **changes)


def send(balancer: WorkingSet, loads: list[EngineLoad], program: str = "p") -> str:
    """Let a call of 4,000 tokens come; return the engine that it goes to."""
    return balancer.assign(ArrivingCall(program, CONTEXT), loads)


def place(balancer: WorkingSet) -> None:
    """Place a program on engine a."""
    loads = [a(), b(running=4)]
    assert send(balancer, loads) == "a"


# New programs.


def test_a_new_program_goes_where_its_context_fits(balancer: WorkingSet) -> None:
    full, roomy = a(report(9000)), b(running=2, memory=report(5000))

    assert send(balancer, [full, roomy]) == "b"
    assert balancer.placement("p") == Placement(engine="b", context_tokens=CONTEXT, wait_s=0.0)


def test_where_it_fits_nowhere_it_goes_where_memory_comes_first(balancer: WorkingSet) -> None:
    longer = a(report(9000, 8000))
    shorter = b(report(10_000, 2000))

    assert send(balancer, [longer, shorter]) == "b"
    placement = balancer.placement("p")
    assert placement is not None
    assert placement.wait_s == pytest.approx(4.0 * 6)  # 16,000 tokens in all; a mean context ends every 4 s.


def test_calls_of_inactive_programs_delay_no_active_one(balancer: WorkingSet) -> None:
    """One that still fits passes those that wait for more memory, and their calls."""
    crowded = a(running=3, waiting=6, memory=report(9000, 6000))
    queued = b(running=8, waiting=1, memory=report(9000))

    assert balancer.assign(ArrivingCall("p", 500), [crowded, queued]) == "a"


def test_programs_that_come_together_are_spread_before_the_next_reports(balancer: WorkingSet) -> None:
    """The reports see none of them, and say that both engines have room for two."""
    loads = [a(report(2000)), b(running=5, memory=report(2000))]

    assert [send(balancer, loads, f"p{number}") for number in range(4)] == [
        "a",
        "a",
        "b",
        "b",
    ]


def test_a_program_in_a_report_is_not_counted_twice(balancer: WorkingSet) -> None:
    loads = [a(), b(running=5)]
    for number in range(2):
        assert send(balancer, loads, f"p{number}") == "a"

    told = report(8000, known={"p0", "p1"})
    assert balancer.assign(ArrivingCall("q", 2000), [a(told), loads[1]]) == "a"


@pytest.mark.parametrize(("reports", "chosen"), [(1, "b"), (MAX_UNSEEN_REPORTS, "a")])
def test_a_program_that_never_arrives_is_counted_for_a_while(
    balancer: WorkingSet, reports: int, chosen: str
) -> None:
    busy = b(running=5)
    for number in range(2):
        assert send(balancer, [a(), busy], f"p{number}") == "a"
    for _ in range(reports):
        balancer.assign(ArrivingCall("other", 1), [a(), replace(busy, running=0)])
        balancer.forget("other")

    loads = [a(balancer._reports["a"]), replace(busy, memory=balancer._reports["b"])]
    assert send(balancer, loads, "q") == chosen


def test_a_report_that_lists_only_some_programs_includes_all(balancer: WorkingSet) -> None:
    busy = b(running=5)
    for number in range(2):
        send(balancer, [a(), busy], f"p{number}")

    partial = a(report(4000, is_complete=False))
    assert send(balancer, [partial, busy], "q") == "a"


def test_without_measured_ends_the_wait_follows_from_mean_programs(balancer: WorkingSet) -> None:
    """So that an engine that has just started does not take a whole backlog."""
    loads = [
        a(report(9000, 9000, between_ends_s=0.0)),
        b(running=5, memory=report(9000, 0, between_ends_s=0.0)),
    ]
    assert send(balancer, loads) == "b"


# Programs with a past.


def test_an_active_program_stays_though_its_engine_is_full(balancer: WorkingSet) -> None:
    place(balancer)

    full = a(report(CAPACITY, 9000, known={"p"}))
    assert balancer.assign(ArrivingCall("p", CONTEXT + 300), [full, b()]) == "a"


def test_an_inactive_program_moves_where_memory_is_free(balancer: WorkingSet) -> None:
    place(balancer)

    waits = a(report(CAPACITY, 9000, known={"p"}, inactive={"p"}))
    assert send(balancer, [waits, b()]) == "b"
    # 5,000 tokens of others are before it, and its own 4,000 are not counted twice.
    assert balancer.placement("p") == Placement(
        engine="b", context_tokens=CONTEXT, wait_s=0.0, left="a", left_wait_s=4.0 * 9
    )


def test_it_stays_where_reading_its_context_again_costs_more(balancer: WorkingSet) -> None:
    place(balancer)

    waits = report(CAPACITY, CONTEXT, known={"p"}, inactive={"p"}, between_ends_s=0.1)
    slow = b(running=7, memory=report(), prefill_s_per_token=0.001)
    assert send(balancer, [a(waits), slow]) == "a"


def test_one_that_lost_its_memory_while_idle_may_move(balancer: WorkingSet) -> None:
    place(balancer)

    dropped = report(CAPACITY, 9000, known={"q"})
    for _ in range(MAX_UNSEEN_REPORTS):
        balancer._read_reports([a(report(known={"q"}))])
    assert send(balancer, [a(dropped), b()]) == "b"


def test_a_report_that_lists_no_idle_programs_lets_them_stay(balancer: WorkingSet) -> None:
    place(balancer)

    partial = report(CAPACITY, 9000, is_complete=False)
    assert send(balancer, [a(partial), b()]) == "a"


def test_a_program_that_another_gateway_sent_is_found(balancer: WorkingSet) -> None:
    """Its context is where it is active."""
    there = b(report(CONTEXT, known={"p"}))
    assert send(balancer, [a(), there]) == "b"


def test_a_move_for_other_reasons_names_no_wait(balancer: WorkingSet) -> None:
    place(balancer)
    queued = a(running=8, waiting=60, memory=report(CONTEXT, known={"p"}))

    assert send(balancer, [queued, b()]) == "b"
    placement = balancer.placement("p")
    assert placement is not None
    assert (placement.left, placement.left_wait_s) == ("a", 0.0)


def test_an_engine_that_returns_has_lost_its_programs(balancer: WorkingSet) -> None:
    loads = [a(), b(running=4)]
    send(balancer, loads)
    send(balancer, [replace(loads[0], is_accepting=False), loads[1]], "q")

    assert {program: pin.engine for program, pin in balancer._pins.items()} == {"q": "b"}
    assert balancer.placement("p") is None


def test_a_removed_engine_is_forgotten(balancer: WorkingSet) -> None:
    loads = [a(), b(running=4)]
    send(balancer, loads)

    assert send(balancer, loads[1:]) == "b"
    placement = balancer.placement("p")
    assert placement is not None
    assert placement.left is None


# Shared prefixes.


def teach(balancer: WorkingSet, share: float = 0.9) -> None:
    """Let two programs with the prefix run on engine a."""
    for name in ("first", "second"):
        assert balancer.assign(ArrivingCall(name, 1000, "tools"), [a()]) == "a"
        balancer.finished(finished(name, "a", 1000, 0 if name == "first" else int(share * 1000)))


def test_a_program_goes_where_others_with_its_prefix_are(balancer: WorkingSet) -> None:
    teach(balancer)
    loads = [
        a(running=2, memory=report(9500, known={"first", "second"})),
        b(report(9500)),
    ]

    assert balancer.assign(ArrivingCall("p", 1000, "tools"), loads) == "a"
    assert balancer.placement("p") == Placement(engine="a", context_tokens=100, wait_s=0.0, shared_tokens=900)
    assert balancer.assign(ArrivingCall("q", 1000, "other tools"), loads) == "b"


def test_a_prefix_stays_cached_after_its_programs_until_others_have_used_the_cache(
    balancer: WorkingSet,
) -> None:
    def choose() -> str:
        loads = [
            b(kv_tokens=20_000),
            a(kv_tokens=20_000),
        ]
        engine = balancer.assign(ArrivingCall("p", 1000, "tools"), loads)
        balancer.forget("p")
        return engine

    teach(balancer)
    balancer.forget("first")
    balancer.forget("second")
    assert choose() == "a"

    balancer.assign(ArrivingCall("long", 30_000), [a()])
    assert choose() == "b"


def test_a_prefix_that_is_not_shared_counts_for_nothing(balancer: WorkingSet) -> None:
    teach(balancer, share=0.0)

    assert balancer.assign(ArrivingCall("p", 1000, "tools"), [a(running=2), OTHER]) == "b"


# Engines without admission.


def test_where_no_engine_reports_memory_all_choices_are_those_of_the_bounded_locality() -> None:
    """Whatever comes: arrivals, answers, ends, engines that come and go."""
    rng = random.Random(11)
    ours, theirs = WorkingSet(), LocalityBounded()
    for _ in range(3000):
        program, action = f"p{rng.randrange(40)}", rng.random()
        if action < 0.6:
            loads = [
                replace(
                    IDLE,
                    name=name,
                    running=rng.randrange(9),
                    waiting=rng.randrange(20),
                    kv_tokens=50_000,
                    is_accepting=name == "a" or rng.random() < 0.9,
                )
                for name in "abc"
            ]
            tokens, prefix = rng.randrange(1, 9000), rng.choice(("", "tools", "manual"))
            assert ours.assign(ArrivingCall(program, tokens, prefix), loads) == theirs.assign(
                ArrivingCall(program, tokens), loads
            )
            assert ours.placement(program) is None
        elif action < 0.8:
            call = finished(program, rng.choice("abc"), rng.randrange(1, 9000), 0)
            ours.finished(call)
            theirs.finished(call)
        else:
            ours.forget(program)
            theirs.forget(program)
        ours.check()
    assert ours._pins == theirs._pins


def test_state_is_bounded_by_the_live_programs(balancer: WorkingSet) -> None:
    """Whatever engines report, only accepting ones are chosen, and nothing outlives its program."""
    rng = random.Random(5)
    alive: set[str] = set()
    memories = dict.fromkeys("abcd", report())
    for _ in range(3000):
        program, action = f"p{rng.randrange(40)}", rng.random()
        if rng.random() < 0.3:
            known = {name for name in alive if rng.random() < 0.6}
            memories[rng.choice("abcd")] = report(
                rng.randrange(0, 12_000),
                rng.randrange(0, 9000),
                known=known,
                inactive={name for name in known if rng.random() < 0.4},
                is_complete=rng.random() < 0.8,
            )
        if action < 0.6:
            loads = [
                replace(
                    IDLE,
                    name=name,
                    running=rng.randrange(9),
                    waiting=rng.randrange(20),
                    kv_tokens=12_000,
                    memory=rng.choice((None, memories[name], memories[name], memories[name])),
                    is_accepting=rng.random() < 0.8 or name == "a",
                )
                for name in "abcd"
            ]
            engine = balancer.assign(
                ArrivingCall(program, rng.randrange(1, 9000), rng.choice(("", "x", "y"))), loads
            )
            assert next(load for load in loads if load.name == engine).is_accepting
            alive.add(program)
        elif action < 0.8:
            balancer.finished(
                finished(program, rng.choice("abcd"), rng.randrange(1, 9000), rng.randrange(500))
            )
        else:
            balancer.forget(program)
            alive.discard(program)
        assert balancer._pins.keys() <= alive
        balancer.check()
    for program in alive:
        balancer.forget(program)
    assert balancer._pins == {}
    assert not any(balancer._sent.values())
    assert not balancer._prefixes._members
