"""Groups of programs: their medians, their stragglers, and that they are bounded and kept apart by tenant."""

from __future__ import annotations

import pytest
from tests.gateway.open_calls import open_call

from autellix_backend.console.history import groups as groups_module
from autellix_backend.console.history.groups import ProgramGroups
from autellix_backend.console.history.history import PastProgram, ProgramHistory
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.settlement import make_settled
from autellix_backend.observe.settled_call import Outcome
from autellix_backend.reports.receipt import Receipt

RECEIPT = Receipt(call_id="c", program_id="p", wait_s=0.0, service_s=0.0)


class Rig:
    """A history and its groups, on a clock that stands until it is moved."""

    def __init__(self, max_groups: int = 100) -> None:
        self.now = 10.0
        self.count = 0
        self.history = ProgramHistory(clock=lambda: self.now)
        self.groups = ProgramGroups(ttl_s=100.0, max_groups=max_groups)
        self.history.subscribe(self.groups.on_program_ended, self.groups.on_member)

    def begin(self, program: str, group: str | None = "g", tenant: str = "") -> GatewayCall:
        self.count += 1
        named = {"x-autellix-program-id": program}
        if group is not None:
            named["x-autellix-group"] = group
        call = open_call(named, key=str(self.count), began_s=self.now, tenant=tenant)
        self.history.on_call_begun(call)
        return call

    def end(self, call: GatewayCall, at_s: float) -> None:
        self.now = at_s
        self.history.on_call_settled(make_settled(call, RECEIPT, Outcome.OK, self.now, 0.0))
        self.history.on_program_ended(call.start.program_id)

    def living(self, program: str) -> PastProgram:
        found = self.history.living(program)
        assert found is not None
        return found

    def late(self, at_s: float) -> list[tuple[str, float]]:
        self.now = at_s
        return [(each.program_id, each.over_median) for each in self.groups.take_stragglers(at_s)]


def test_a_straggler_is_found_once_half_of_its_group_has_ended() -> None:
    rig = Rig()
    calls = [rig.begin(f"p{number}") for number in range(4)]
    rig.end(calls[0], 12.0)
    assert rig.groups.median_s(rig.living("p3")) is None
    assert rig.late(60.0) == []
    rig.now = 12.0
    rig.end(calls[1], 14.0)
    assert rig.groups.median_s(rig.living("p3")) == 2.0
    assert rig.late(14.0) == [], "twice the median is not beyond it"
    assert rig.late(15.0) == [("p2", 2.5), ("p3", 2.5)]
    assert rig.late(20.0) == [], "each is found once"
    rig.end(calls[2], 20.0)
    assert rig.groups.median_s(rig.living("p3")) == 4.0


def test_a_straggler_names_what_it_is_compared_with() -> None:
    rig = Rig()
    slow, fast = rig.begin("slow"), rig.begin("fast")
    rig.end(fast, 11.0)
    (late,) = rig.groups.take_stragglers(15.0)
    assert (late.program_id, late.group, late.age_s, late.median_s) == ("slow", "g", 5.0, 1.0)
    rig.begin("slow")
    assert rig.late(16.0) == [], "a further call makes it no new member"
    rig.end(slow, 17.0)
    rig.end(rig.begin("slow"), 18.0)
    assert rig.groups.take_stragglers(100.0) == []


def test_a_program_keeps_its_first_group() -> None:
    rig = Rig()
    rig.begin("p", None)
    assert len(rig.groups) == 0
    assert rig.groups.median_s(rig.living("p")) is None
    rig.begin("p", "first")
    rig.begin("p", "second")
    assert (rig.living("p").group, len(rig.groups)) == ("first", 1)


def test_tenants_share_no_group() -> None:
    rig = Rig()
    rig.begin("a/slow", tenant="a")
    rig.end(rig.begin("b/fast", tenant="b"), 11.0)
    assert len(rig.groups) == 2
    assert rig.groups.median_s(rig.living("a/slow")) is None
    assert rig.late(50.0) == []


def test_a_program_without_duration_makes_no_stragglers() -> None:
    rig = Rig()
    rig.begin("slow")
    rig.end(rig.begin("fast"), 10.0)
    assert rig.late(50.0) == []


def test_groups_and_times_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full table drops groups of the tenant that has the most, and a dropped group begins again."""
    monkeypatch.setattr(groups_module, "MAX_TIMES", 2)
    rig = Rig(max_groups=3)
    rig.begin("mine/p", "g", tenant="mine")
    calls = [rig.begin(f"loud/{number}", str(number), tenant="loud") for number in range(9)]
    assert len(rig.groups) == 3
    rig.end(calls[0], 11.0)
    for number in range(5):
        rig.end(rig.begin(f"mine/{number}", "g", tenant="mine"), 20.0 + 10.0 * number)
    assert rig.groups.median_s(rig.living("mine/p")) == 9.0, "the third and later times do not count"
    rig.groups.take_stragglers(1000.0)
    assert len(rig.groups) == 0
    rig.begin("mine/p", "g", tenant="mine")
    assert rig.groups.median_s(rig.living("mine/p")) is None
