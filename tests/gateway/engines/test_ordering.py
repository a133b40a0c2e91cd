"""The next call for an engine: first come, first served, or by the scheduler's machine."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.hints import Hints
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.engines.ordering import REVIEW_PERIOD_S, ArrivalOrdering, PolicyOrdering
from autellix_backend.observe.settled_call import Usage


def ordered(slots: int = 1, **config: Any) -> PolicyOrdering:
    return PolicyOrdering(SchedulerConfig(**{"policy": "plas", "bounds": (1.0, 10.0), **config}), slots)


def drain(ordering: PolicyOrdering, now: float = 0.0) -> list[str]:
    """Let each call run for no time; return the order."""
    order = []
    while (key := ordering.next(now)) is not None:
        ordering.send(key, now)
        ordering.leave(key, now)
        ordering.check()
        order.append(key)
    return order


def test_first_come_first_served_keeps_the_order_of_arrival() -> None:
    ordering = ArrivalOrdering()
    for number in range(3):
        ordering.enter(Arrival(str(number), "p", service_s=3.0 - number), 0.0)
    ordering.leave("1", 1.0)
    assert ordering.next(2.0) == "0"
    assert ordering.send("0", 2.0).wait_s == 2.0
    assert ordering.next(2.0) == "2"
    assert ordering.send("2", 5.0).wait_s == 5.0
    assert ordering.next(9.0) is None
    assert [ordering.leave(key, 9.0) for key in ("0", "2")] == [None, None]


def test_the_priorities_of_programs_order_calls_at_the_gateway() -> None:
    ordering = ordered(policy="boost", boost=0.0, bounds=())
    for priority in (Priority.BATCH, Priority.DEFAULT, Priority.INTERACTIVE):
        ordering.enter(Arrival(priority, priority, hints=Hints(priority=priority)), 0.0)
    assert drain(ordering) == ["interactive", "default", "batch"]


def test_the_program_with_the_least_service_goes_first() -> None:
    ordering = ordered()
    for key, service_s in (("long", 20.0), ("middle", 5.0), ("fresh", 0.0), ("middle-2", 5.0)):
        ordering.enter(Arrival(key, key, service_s=service_s), 0.0)
    assert drain(ordering) == ["fresh", "middle", "middle-2", "long"]


def test_no_more_calls_are_sent_than_slots_and_none_is_preempted() -> None:
    ordering = ordered(slots=2)
    for key in ("a", "b", "c"):
        ordering.enter(Arrival(key, key, service_s=20.0), 0.0)
    for expected in ("a", "b"):
        assert ordering.next(0.0) == expected
        ordering.send(expected, 0.0)
    ordering.enter(Arrival("fresh", "fresh"), 1.0)
    assert ordering.next(1.0) is None
    ordering.leave("a", 2.0)
    assert ordering.next(2.0) == "fresh"


def test_a_call_that_waited_too_long_is_promoted() -> None:
    ordering = ordered(beta=2.0)
    ordering.enter(Arrival("long", "long", service_s=5.0), 0.0)
    ordering.enter(Arrival("fresh", "fresh"), 9.0)
    assert ordering.next(9.9) == "fresh"
    ordering.enter(Arrival("fresh-2", "fresh-2"), 9.95)
    ordering.leave("fresh", 9.96)
    assert ordering.next(10.0) == "fresh-2", "it came to the first level before"
    ordering.send("fresh-2", 10.0)
    ordering.leave("fresh-2", 10.0)
    assert ordering.next(10.0) == "long"
    wait = ordering.send("long", 12.0)
    assert (wait.wait_s, wait.counted_s) == (12.0, 2.0), "what a promotion made good counts no more"


def test_calls_that_nothing_identified_go_by_their_arrival() -> None:
    ordering = ordered(1, policy="boost")
    for number, tokens in enumerate([90_000, 10, 5_000]):
        arrival = Arrival(str(number), str(number), is_identified=False, context=Context(tokens))
        ordering.enter(arrival, float(number))
    order = []
    while (key := ordering.next(4.0)) is not None:
        ordering.send(key, 4.0)
        ordering.leave(key, 4.0)
        order.append(key)
    assert order == ["0", "1", "2"]


@given(
    policy=st.sampled_from(LIVE_POLICY_NAMES),
    slots=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["enter", "go", "leave"]), st.integers(0, 7), st.floats(0, 5)), max_size=60
    ),
)
def test_nothing_is_kept_of_ended_programs(
    policy: str, slots: int, steps: list[tuple[str, int, float]]
) -> None:
    ordering, now, present = ordered(slots, policy=policy), 0.0, []
    for number, (step, pick, pause_s) in enumerate(steps):
        now += pause_s
        if step == "enter":
            tenant = f"tenant-{pick % 2}"
            ordering.enter(Arrival(str(number), f"{tenant}/{pick}", tenant=tenant, service_s=pause_s), now)
            present.append(str(number))
        elif step == "go" and (key := ordering.next(now)) is not None:
            assert key in present
            ordering.send(key, now)
        elif step == "leave" and present:
            ordering.leave(present.pop(pick % len(present)), now)
        ordering.check()
    for key in present:
        ordering.leave(key, now)
    ordering.check()
    assert ordering.next(now) is None
    for program_id in [program.program_id for program in ordering._machine.table.programs()]:
        ordering.on_program_ended(program_id, now)
    ordering.check()
    assert len(ordering._machine.table) == 0


def admitted(**config: Any) -> PolicyOrdering:
    """Return an ordering for an engine with room for 600 tokens of active programs."""
    return PolicyOrdering(
        SchedulerConfig(**{"policy": "boost", "admission": "working_set", "kv_share": 0.6, **config}),
        kv_tokens=1000,
    )


def arrival(key: str, tokens: int) -> Arrival:
    return Arrival(key, key.partition("-")[0], context=Context(tokens))


def sent(ordering: PolicyOrdering, now: float) -> list[str]:
    """Send all calls that may be sent; return them."""
    keys = []
    while (key := ordering.next(now)) is not None:
        ordering.send(key, now)
        keys.append(key)
    ordering.check()
    return keys


def test_programs_run_as_long_as_their_contexts_fit() -> None:
    """The slots are unbounded: only memory keeps the third program waiting, until the first one ends."""
    ordering = admitted()
    for key in ("p-1", "q-1", "r-1"):
        ordering.enter(arrival(key, 250), 0.0)
    assert sent(ordering, 0.0) == ["p-1", "q-1"]
    inactive = ordering.inactive("r-1")
    assert inactive is not None
    assert inactive.text == ("it needs 250 tokens, 100 of 600 are free. No program is ahead of it")
    assert ordering.inactive("p-1") is None
    assert ordering.working_set() == (2, 1, 500, 600)
    ordering.leave("p-1", 1.0, Usage(prompt_tokens=250, output_tokens=10))
    assert sent(ordering, 1.0) == [], "the next call of the first program wants its context again"
    ordering.on_program_ended("p", 1.1)
    assert sent(ordering, 1.1) == ["r-1"]


def test_a_context_is_what_the_last_answer_stated() -> None:
    ordering = admitted()
    ordering.enter(arrival("p-1", 100), 0.0)
    assert sent(ordering, 0.0) == ["p-1"]
    ordering.leave("p-1", 1.0, Usage(prompt_tokens=380, output_tokens=20))
    assert ordering.working_set() == (1, 0, 400, 600)
    ordering.enter(arrival("p-2", 410), 2.0)
    assert ordering.working_set() == (1, 0, 410, 600)
    assert ordering._machine.call("p-2").new_tokens == 10


def with_prefix(key: str, tokens: int) -> Arrival:
    """Return the first call of a program, whose prompt begins as those of others do."""
    return Arrival(key, key[0], context=Context(tokens, prefix="tools"))


def test_a_prefix_that_first_calls_found_in_the_cache_counts_once() -> None:
    ordering = admitted()
    for key, cached_tokens in (("a-1", 0), ("b-1", 200)):
        ordering.enter(with_prefix(key, 250), 0.0)
        assert sent(ordering, 0.0) == [key]
        ordering.leave(key, 1.0, Usage(250, 10, cached_tokens))
    assert ordering.working_set() == (2, 0, 520, 600), "each has its own so far"
    ordering.enter(arrival("a-2", 270), 2.0)
    ordering.enter(arrival("b-2", 270), 2.0)
    assert ordering.working_set() == (2, 0, 340, 600)
    ordering.enter(with_prefix("c-1", 260), 2.0)
    assert ordering._machine.call("c-1").new_tokens == 60
    assert sorted(sent(ordering, 2.0)) == ["a-2", "b-2", "c-1"]
    assert ordering.working_set() == (3, 0, 400, 600)


def test_only_the_first_call_of_a_program_shows_what_it_shares() -> None:
    """Later ones find their program's own context, and a call that failed found nothing."""
    ordering = admitted()
    for key, usage in (("a-1", None), ("b-1", Usage(250, 10, 0))):
        ordering.enter(with_prefix(key, 250), 0.0)
        assert sent(ordering, 0.0) == [key]
        ordering.leave(key, 1.0, usage)
    ordering.enter(with_prefix("b-2", 260), 2.0)
    assert sent(ordering, 2.0) == ["b-2"]
    ordering.leave("b-2", 3.0, Usage(260, 10, 250))
    ordering.on_program_ended("a", 3.0)
    ordering.on_program_ended("b", 3.0)
    ordering.enter(with_prefix("c-1", 260), 4.0)
    assert ordering._machine.call("c-1").new_tokens == 260
    assert not (ordering._prefixes.keys() - {"c"})


def test_an_estimate_beyond_all_memory_counts_as_the_last_context() -> None:
    """As of a body with an image; and a call that is as large as it says is refused by its engine at once."""
    ordering = admitted()
    ordering.enter(arrival("p-1", 400), 0.0)
    ordering.enter(arrival("q-1", 1001), 0.0)
    assert sent(ordering, 0.0) == ["p-1", "q-1"]
    assert ordering.working_set() == (2, 0, 400, 600)
    ordering.leave("q-1", 1.0, Usage(prompt_tokens=150))
    ordering.enter(arrival("q-2", 20_000_000), 2.0)
    assert sent(ordering, 2.0) == ["q-2"]
    assert ordering.working_set() == (2, 0, 550, 600)


def test_a_program_that_lost_its_place_comes_back_with_its_whole_context() -> None:
    ordering = admitted(idle_s=5.0)
    ordering.enter(arrival("p-1", 500), 0.0)
    assert sent(ordering, 0.0) == ["p-1"]
    ordering.enter(arrival("q-1", 500), 0.0)
    ordering.leave("p-1", 1.0, Usage(prompt_tokens=500))
    assert sent(ordering, 7.0) == ["q-1"]
    ordering.enter(arrival("p-2", 510), 8.0)
    assert sent(ordering, 8.0) == []
    inactive = ordering.inactive("p-2")
    assert inactive is not None
    assert inactive.context_tokens == 510


def test_the_cost_of_work_is_the_busy_time_by_the_work_of_finished_calls() -> None:
    """Two calls at once, 2 s and 1 s apart, and an idle time that does not count."""
    ordering = admitted()
    for now, key in ((0.0, "p-1"), (0.0, "q-1"), (10.0, "p-2")):
        ordering.enter(arrival(key, 100), now)
        assert sent(ordering, now) == [key]
        if key == "q-1":
            ordering.leave("p-1", 2.0, Usage(prompt_tokens=100))
            ordering.leave("q-1", 3.0, Usage(prompt_tokens=100))
    ordering.leave("p-2", 11.0, Usage(prompt_tokens=300, cached_tokens=100))
    assert abs(ordering._machine.token_cost.seconds - 4.0 / 400) < 1e-4


def test_the_balancer_gets_the_estimate_anew_after_a_while() -> None:
    ordering = admitted()
    for number in range(3):
        ordering.enter(Arrival(f"c{number}", f"p{number}", context=Context(250)), 0.0)
    ordering.next(0.0)

    told = ordering.memory(0.0)
    assert told is not None
    assert (told.active_tokens, told.inactive_tokens, told.capacity_tokens) == (500, 250, 600)
    assert (told.known, told.inactive) == ({"p0", "p1", "p2"}, {"p2"})

    ordering.leave("c2", REVIEW_PERIOD_S / 2)
    assert ordering.memory(REVIEW_PERIOD_S / 2) is told
    later = ordering.memory(REVIEW_PERIOD_S)
    assert later is not None
    assert later.inactive_tokens == 0
