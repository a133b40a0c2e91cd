"""Reports of memory, and the wait that follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.core.admission.working_set import WorkingSetAdmission
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance.memory import MemoryReport, memory_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine

TOKENS = st.integers(0, 20_000)


def report(**fields: int) -> MemoryReport:
    defaults = {"capacity_tokens": 10_000, "active_tokens": 8000, "active_programs": 4, "between_ends_s": 3}
    return MemoryReport(**(defaults | fields))  # type: ignore[arg-type]


def test_what_fits_beside_active_programs_waits_for_nobody() -> None:
    crowded = report(inactive_tokens=5000)

    assert crowded.wait_s(2000) == 0.0
    assert crowded.wait_s(2000, sent_tokens=1) > 0.0


def test_what_does_not_fit_waits_for_ends_that_leave_enough() -> None:
    """A mean context of 2,000 tokens ends every 3 s."""
    assert report().wait_s(4000) == pytest.approx(3.0)
    assert report(inactive_tokens=5000).wait_s(4000) == pytest.approx(3.0 * 3.5)
    assert report(inactive_tokens=5000).wait_s(4000, is_inactive=True) == pytest.approx(3.0 * 1.5)
    assert report().wait_s(4000, between_ends_s=5.0) == pytest.approx(5.0)


def test_a_new_program_has_a_mean_context() -> None:
    assert report(inactive_tokens=4000).mean_wait_s == 0.0
    assert report(active_tokens=10_000, inactive_tokens=2500).mean_wait_s == pytest.approx(3.0 * 2)
    assert report(active_tokens=0, active_programs=0).mean_wait_s == 0.0


@given(used=TOKENS, inactive=TOKENS, own=TOKENS, more=TOKENS, is_inactive=st.booleans())
def test_more_memory_in_use_never_shortens_the_wait(
    used: int, inactive: int, own: int, more: int, *, is_inactive: bool
) -> None:
    def wait_s(active: int, waiting: int, sent: int) -> float:
        told = report(active_tokens=active, active_programs=max(1, active // 2000), inactive_tokens=waiting)
        return told.wait_s(own, sent_tokens=sent, is_inactive=is_inactive)

    assert 0.0 <= wait_s(used, inactive, 0) <= wait_s(used, inactive + more, 0)
    assert wait_s(used, inactive, 0) <= wait_s(used, inactive, more)


def test_the_report_of_an_admission() -> None:
    """Two programs share a prefix and are active, one of them idle; two of another prefix wait."""
    machine = Machine(SchedulerConfig(admission="working_set", kv_share=0.5), kv_tokens=1000)
    for number, prefix in enumerate(("tools", "tools", "manual", "manual")):
        context = Context(300, prefix=prefix, prefix_tokens=100)
        machine.arrive(Arrival(f"c{number}", f"p{number}", context=context), 0.0)
    machine.arrive(Arrival("more", "p3", context=Context(250, shared_tokens=250)), 0.0)
    machine.start("c0", 0.0)
    machine.finish("c0", 6.0, context_tokens=300)

    told = memory_of(machine, 6.0)

    assert told is not None
    assert (told.capacity_tokens, told.active_tokens, told.active_programs) == (500, 500, 2)
    assert (told.inactive_tokens, told.inactive_calls) == (200 + 200 + 100, 3)
    assert (told.known, told.inactive) == ({"p0", "p1", "p2", "p3"}, {"p2", "p3"})
    # Nobody has ended in 6 s, which counts as one interval.
    assert told.between_ends_s == pytest.approx(6.0)
    assert told.is_complete


def test_contexts_of_programs_that_were_idle_for_long_are_spare() -> None:
    """They would make way for any that waits, so they are no demand, and nobody waits for them."""
    machine = Machine(SchedulerConfig(admission="working_set", kv_share=1.0, idle_s=50.0), kv_tokens=1000)
    for name in ("gone", "busy"):
        machine.arrive(Arrival(name, name, context=Context(450, prefix="tools", prefix_tokens=100)), 0.0)
        machine.start(name, 0.0)
    machine.finish("gone", 1.0, context_tokens=450)
    assert isinstance(machine.admission, WorkingSetAdmission)
    limit_s = machine.admission.idle.of_class("", "")

    def spare_after(idle_s: float) -> int:
        told = memory_of(machine, 1.0 + idle_s)
        assert told is not None
        assert told.active_tokens == 100 + 350 + 350
        assert told.demand == (800 - told.spare_tokens) / 1000
        assert (told.wait_s(400, between_ends_s=1.0) == 0.0) is (told.spare_tokens > 0)
        return told.spare_tokens

    assert 0.0 < limit_s <= 50.0
    assert [spare_after(limit_s), spare_after(limit_s + 0.1)] == [0, 350]
    # Its next call makes it busy again.
    machine.arrive(Arrival("back", "gone", context=Context(450)), 90.0)
    assert spare_after(100.0) == 0


def test_without_admission_there_is_no_report() -> None:
    machine = Machine(SchedulerConfig(admission="none"), kv_tokens=1000)
    assert memory_of(machine, 0.0) is None
    assert machine.admission.spare_tokens(0.0) == 0
