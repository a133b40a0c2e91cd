"""The history's bounds: by number, age and memory, fairly among tenants."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.gateway.open_calls import open_call

from autellix_backend.console.history import history as history_module
from autellix_backend.console.history.history import ProgramHistory
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.settlement import make_settled
from autellix_backend.observe.settled_call import Outcome
from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import Adoption


class Rig:
    """A history with clocks that stand until they are moved."""

    def __init__(self, max_programs: int = 100, max_age_s: float = 1000.0, **bounds: Any) -> None:
        self.now = 10.0
        self.count = 0
        self.history = ProgramHistory(
            max_programs,
            max_age_s=max_age_s,
            clock=lambda: self.now,
            wall_clock=lambda: 1e9 + self.now,
            **bounds,
        )

    def begin(
        self, program: str, tenant: str = "", call_id: str | None = None, adopts: Adoption | None = None
    ) -> GatewayCall:
        self.count += 1
        named = {"x-autellix-program-id": program, "x-autellix-call-id": call_id or f"call-{self.count}"}
        call = open_call(named, key=str(self.count), began_s=self.now, tenant=tenant)
        call.start = replace(call.start, adopts=adopts)
        self.history.on_call_begun(call)
        return call

    def settle(self, call: GatewayCall, took_s: float = 1.0, **receipt: Any) -> None:
        self.now += took_s
        values = {"call_id": "c", "program_id": "p", "wait_s": 0.0, "service_s": 0.0, **receipt}
        settled = make_settled(call, Receipt(**values), Outcome.OK, self.now, 0.0)
        self.history.on_call_settled(settled)

    def play(self, program: str, tenant: str = "", calls: int = 1, call_id: str | None = None) -> None:
        for _ in range(calls):
            self.settle(self.begin(program, tenant, call_id))
        self.history.on_program_ended(program)

    def shown(self, prefix: str = "") -> list[str]:
        return [program.program_id for program in self.history.programs(prefix)]


def test_a_program_is_kept_with_what_its_calls_took() -> None:
    rig = Rig()
    first = rig.begin("p")
    rig.settle(first, 2.0, wait_s=1.5, inactive_s=1.0, service_s=0.4, preemptions=2, level=3)
    rig.now += 1.0
    second = rig.begin("p")
    rig.history.on_program_ended("p")
    assert rig.history.find("p") is None, "a call of it is open"
    rig.settle(second)
    rig.history.on_program_ended("p")

    kept = rig.history.find("p")
    assert kept is not None
    assert (kept.duration_s, kept.ended_at_s, kept.began_at_s) == (4.0, 1e9 + 14.0, 1e9 + 10.0)
    one, two = kept.calls
    assert (one.began_s, one.settled_s, one.receipt.wait_s, one.receipt.level) == (10.0, 12.0, 1.5, 3)
    assert (two.began_s, two.settled_s) == (13.0, 14.0)


def test_an_unknown_program_and_a_late_call_change_nothing() -> None:
    rig = Rig()
    rig.history.on_program_ended("p")
    call = Rig().begin("p")
    rig.settle(call)
    assert (len(rig.history), rig.history.size_bytes) == (0, 0)


def test_the_last_end_of_an_id_replaces_the_one_before() -> None:
    rig = Rig()
    rig.play("a")
    rig.play("b")
    rig.play("a", calls=2)
    assert rig.shown() == ["a", "b"]
    kept = rig.history.find("a")
    assert kept is not None
    assert len(kept.calls) == 2


def test_the_number_is_bounded_and_the_tenant_with_the_most_loses_first() -> None:
    rig = Rig(max_programs=4)
    rig.play("quiet:1", "quiet")
    for number in range(9):
        rig.play(f"loud:{number}", "loud")
    assert rig.shown() == ["loud:8", "loud:7", "loud:6", "quiet:1"]
    assert rig.shown("quiet:") == ["quiet:1"]


def test_old_programs_are_forgotten() -> None:
    rig = Rig(max_age_s=50.0)
    rig.play("old")
    rig.now += 40.0
    rig.play("new")
    rig.now += 20.0
    assert rig.shown() == ["new"]
    assert rig.history.find("old") is None
    rig.now += 60.0
    assert (rig.shown(), len(rig.history), rig.history.size_bytes) == ([], 0, 0)


def test_memory_is_bounded_and_the_tenant_with_the_most_loses_first() -> None:
    rig = Rig(max_bytes=24_000)
    rig.play("quiet:1", "quiet", calls=3)
    for number in range(20):
        rig.play(f"loud:{number}", "loud", call_id="x" * 250)
    assert rig.history.size_bytes <= 24_000
    assert "quiet:1" in rig.shown()
    assert rig.shown()[0] == "loud:19"


def test_living_programs_count_and_lose_their_calls_where_nothing_else_is_left() -> None:
    rig = Rig(max_bytes=12_000)
    rig.play("quiet:1", "quiet")
    for number in range(10):
        rig.settle(rig.begin(f"loud:{number}", "loud", "x" * 250))
    assert rig.history.size_bytes <= 12_000
    assert rig.shown() == ["quiet:1"]
    # The last calls came when others had gone.
    rig.history.on_program_ended("loud:1")
    assert [(p.left_out, len(p.calls)) for p in rig.history.programs("loud:")] in ([(1, 0)], [])


def test_the_living_program_that_has_kept_calls_for_longest_loses_them_first() -> None:
    rig = Rig(max_bytes=6_000)
    for program in ("a", "b", "c", "d", "a", "e"):
        rig.settle(rig.begin(program))
    living = {name: rig.history.living(name) for name in "abcde"}
    kept = {name: program and (len(program.calls), program.left_out) for name, program in living.items()}
    assert kept == {"a": (1, 1), "b": (0, 1), "c": (0, 1), "d": (1, 0), "e": (1, 0)}


def test_an_ended_program_loses_its_calls_before_a_living_one() -> None:
    rig = Rig(max_bytes=6_000)
    rig.settle(rig.begin("lives"))
    rig.play("ended")
    rig.settle(rig.begin("lives too"))
    assert rig.shown() == []
    rig.history.on_program_ended("lives")
    assert [len(program.calls) for program in rig.history.programs("lives")] == [1]


def test_a_program_with_too_many_calls_is_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_CALLS", 3)
    rig = Rig()
    rig.play("p", calls=5)
    kept = rig.history.find("p")
    assert kept is not None
    assert (len(kept.calls), kept.left_out) == (3, 2)


def test_an_adopted_call_moves_with_its_program() -> None:
    """A program that has lost all its calls so is not kept, and nobody is told of its end."""
    rig = Rig()
    ended: list[str] = []
    rig.history.subscribe(lambda program: ended.append(program.program_id))
    for call_id in ("plan", "first"):
        rig.settle(rig.begin("process", call_id=call_id))
    began_s, size_bytes = rig.now, rig.history.size_bytes
    rig.settle(rig.begin("first", adopts=Adoption("process", "first")))
    found, left = rig.history.living("first"), rig.history.living("process")
    assert found is not None
    assert left is not None
    assert [call.start.call_id for call in left.calls] == ["plan"]
    assert [call.start.program_id for call in found.calls] == ["first", "first"]
    assert (found.start_s, found.began_at_s) == (began_s - 1.0, 1e9 + began_s - 1.0)
    assert found.duration_s == 2.0
    assert rig.history.size_bytes > size_bytes
    # It is there no more, and of what never was there nothing comes.
    for adoption in (Adoption("process", "first"), Adoption("nowhere", "x"), Adoption("first", "first")):
        rig.settle(rig.begin("first", adopts=adoption))
    assert len(found.calls) == 5
    rig.settle(rig.begin("plan", adopts=Adoption("process", "plan")))
    for program in ("process", "first", "plan"):
        rig.history.on_program_ended(program)
    assert ended == ["first", "plan"]
    assert rig.shown() == ["plan", "first"]
    assert rig.history.size_bytes == sum(program.size_bytes for program in rig.history.programs())
