"""Who goes next to the engine: first come, first served, or as the scheduler's machine says."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.gateway.engines.queue import ArrivalOrdering, PolicyOrdering


def ordered(slots: int = 1, **config: Any) -> PolicyOrdering:
    return PolicyOrdering(SchedulerConfig(**{"policy": "plas", "bounds": (1.0, 10.0), **config}), slots)


def drain(line: PolicyOrdering, now: float = 0.0) -> list[str]:
    """Let each call run for no time; return the order."""
    order = []
    while (key := line.next(now)) is not None:
        line.go(key, now)
        line.leave(key, now)
        line.check()
        order.append(key)
    return order


def test_a_straight_line_lets_all_go_in_their_order() -> None:
    line = ArrivalOrdering()
    for number in range(3):
        line.enter(Arrival(str(number), "p", service_s=3.0 - number), 0.0)
    line.leave("1", 1.0)
    assert line.next(2.0) == "0"
    assert line.go("0", 2.0).wait_s == 2.0
    assert line.next(2.0) == "2"
    assert line.go("2", 5.0).wait_s == 5.0
    assert line.next(9.0) is None
    assert [line.leave(key, 9.0) for key in ("0", "2")] == [None, None]


def test_the_program_with_the_least_service_goes_first() -> None:
    line = ordered()
    for key, service_s in (("long", 20.0), ("middle", 5.0), ("fresh", 0.0), ("middle-2", 5.0)):
        line.enter(Arrival(key, key, service_s=service_s), 0.0)
    assert drain(line) == ["fresh", "middle", "middle-2", "long"]


def test_no_more_calls_go_than_there_are_slots_and_none_is_called_back() -> None:
    line = ordered(slots=2)
    for key in ("a", "b", "c"):
        line.enter(Arrival(key, key, service_s=20.0), 0.0)
    for expected in ("a", "b"):
        assert line.next(0.0) == expected
        line.go(expected, 0.0)
    line.enter(Arrival("fresh", "fresh"), 1.0)
    assert line.next(1.0) is None
    line.leave("a", 2.0)
    assert line.next(2.0) == "fresh"


def test_a_call_that_waited_too_long_is_promoted() -> None:
    line = ordered(beta=2.0)
    line.enter(Arrival("long", "long", service_s=5.0), 0.0)
    line.enter(Arrival("fresh", "fresh"), 9.0)
    assert line.next(9.9) == "fresh"
    line.enter(Arrival("fresh-2", "fresh-2"), 9.95)
    line.leave("fresh", 9.96)
    assert line.next(10.0) == "fresh-2", "it came to the first level before"
    line.go("fresh-2", 10.0)
    line.leave("fresh-2", 10.0)
    assert line.next(10.0) == "long"
    wait = line.go("long", 12.0)
    assert (wait.wait_s, wait.counted_s) == (12.0, 2.0), "what a promotion made good counts no more"


def test_a_promotion_is_ahead_of_what_comes_later() -> None:
    line = ordered(beta=2.0)
    line.enter(Arrival("long", "long", service_s=5.0), 0.0)
    assert line.next(10.0) == "long"
    line.enter(Arrival("fresh", "fresh"), 10.5)
    assert line.next(11.0) == "long"


def test_tenants_share_by_weight_and_new_programs_gain_nothing() -> None:
    """One tenant with a fresh program on every call, one with a long program: each gets half of the time."""
    line = ordered()
    served_s = {"fresh": 0.0, "long": 0.0}
    for number in range(40):
        line.enter(Arrival(f"fresh-{number}", f"fresh-{number}", tenant="fresh"), 0.0)
        line.enter(Arrival(f"long-{number}", "long", tenant="long", service_s=100.0), 0.0)
    for now in range(40):
        key = line.next(float(now))
        assert key is not None
        line.go(key, float(now))
        line.leave(key, now + 1.0)
        served_s[key.partition("-")[0]] += 1.0
        line.check()
    assert abs(served_s["long"] - served_s["fresh"]) <= 2.0


@given(
    policy=st.sampled_from(LIVE_POLICY_NAMES),
    slots=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["enter", "go", "leave"]), st.integers(0, 7), st.floats(0, 5)), max_size=60
    ),
)
def test_nothing_is_kept_of_calls_that_left(
    policy: str, slots: int, steps: list[tuple[str, int, float]]
) -> None:
    line, now, present = ordered(slots, policy=policy), 0.0, []
    for number, (step, pick, pause_s) in enumerate(steps):
        now += pause_s
        if step == "enter":
            tenant = f"tenant-{pick % 2}"
            line.enter(Arrival(str(number), f"{tenant}/{pick}", tenant=tenant, service_s=pause_s), now)
            present.append(str(number))
        elif step == "go" and (key := line.next(now)) is not None:
            assert key in present
            line.go(key, now)
        elif step == "leave" and present:
            line.leave(present.pop(pick % len(present)), now)
        line.check()
    for key in present:
        line.leave(key, now)
    line.check()
    assert line.next(now) is None
    assert len(line._machine.table) == 0
