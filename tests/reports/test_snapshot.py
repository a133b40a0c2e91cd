"""The snapshot of an engine's queues."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.balance.memory import memory_of
from autellix_backend.core.boost import LEAST_WORK
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.snapshot import (
    MAX_IDLE_IDS,
    MAX_PRESENT_BYTES,
    MAX_SNAPSHOT_BYTES,
    AdmissionSnapshot,
    BoostSnapshot,
    CallSnapshot,
    DemandSnapshot,
    EngineSnapshot,
    KvOffloadTotals,
    ParkedSnapshot,
    PresentPrograms,
    admission_of,
    boost_of,
    demand_of,
    parked_of,
    present_of,
    snapshot_of,
)


def machine_of(**config: Any) -> Machine:
    return Machine(SchedulerConfig(**{"policy": "plas", "bounds": (1.0, 4.0), "beta": 8.0, **config}))


def standing(machine: Machine, call_id: str, now: float) -> CallSnapshot:
    return snapshot_of(machine, machine.call(call_id), now, place=1, call_id="client-" + call_id)


def snapshot(count: int = 3, id_length: int = 8) -> EngineSnapshot:
    machine = machine_of()
    for number in range(count):
        machine.arrive(Arrival(f"{number:0{id_length}}", f"p{number:0{id_length}}", service_s=2.0), 0.0)
    calls = tuple(
        snapshot_of(machine, call, 1.0, place=place, call_id=call.call_id)
        for place, call in enumerate(machine, start=1)
    )
    return EngineSnapshot(
        step=7,
        mean_step_s=0.02,
        running=1,
        waiting=count + 4,
        slots=1,
        kv_used_blocks=3,
        kv_total_blocks=9,
        kv_block_tokens=16,
        is_block_short=True,
        level_calls=machine.shares.level_sizes(),
        calls=calls,
        left_out=5,
    )


def test_a_snapshot_survives_the_wire() -> None:
    full = msgspec.structs.replace(
        snapshot(),
        kv_offload=KvOffloadTotals(4096, 2, 0.25, 2048, 1, 0.125, 3, 0),
        admission=AdmissionSnapshot(3, 2, 500, 600),
        boost=BoostSnapshot(1.5, 0.75, 2.0),
        hold_s=14.5,
    )

    for sent in (full, snapshot(0)):
        assert sent == EngineSnapshot.from_bytes(sent.to_bytes())


def test_a_call_without_the_columns_of_admission_is_admitted() -> None:
    """An engine of an earlier version sends none."""
    fields = json.loads(snapshot(1).to_bytes())
    fields["calls"] = [call[:-6] for call in fields["calls"]]
    (call,) = EngineSnapshot.from_bytes(json.dumps(fields).encode()).calls

    assert (call.is_admitted, call.context_tokens, call.inactive_place) == (True, None, None)
    assert (call.counted_age_s, call.is_decoding) == (None, None)


def test_the_state_of_admission_and_boost() -> None:
    machine = machine_of()
    assert (admission_of(machine), boost_of(machine)) == (None, None)
    config = SchedulerConfig(policy="boost", boost=1.0, admission="working_set", kv_share=0.5)
    machine = Machine(config, kv_tokens=1000)
    machine.table.statistics.sizes_of("").known = 1.25
    for number in range(3):
        context = Context(300, prefix="tools", prefix_tokens=100)
        machine.arrive(Arrival(f"c{number}", f"p{number}", context=context), float(number))
    machine.tick(3.0)

    assert admission_of(machine) == AdmissionSnapshot(2, 1, 500, 500)
    assert boost_of(machine) == BoostSnapshot(strength_s=6.0, spread=1.25, response_s=6.0)
    assert (standing(machine, "c0", 4.0).context_tokens, standing(machine, "c0", 4.0).is_admitted) == (
        300,
        True,
    )
    refused = snapshot_of(machine, machine.call("c2"), 4.0, place=3, call_id="c2", inactive_place=1)
    assert (refused.is_admitted, refused.inactive_place, refused.wait_s) == (False, 1, 2.0)
    # It came at 2.0 with less than the least work, which the strength of 6 s makes an earlier arrival.
    known_s = LEAST_WORK * machine.token_cost.seconds
    boost_s = 6.0 * math.log(1 / (1 - math.exp(-known_s / 6.0)))
    assert refused.counted_age_s == pytest.approx(2.0 + boost_s)
    assert snapshot(1).calls[0].counted_age_s is None


def waiting_machine(idle_programs: int = 1) -> Machine:
    """Return a machine with idle programs, one that is active, and one that does not fit."""
    config = SchedulerConfig(policy="boost", admission="working_set", kv_share=1.0)
    machine = Machine(config, kv_tokens=300 + idle_programs)
    for number in range(idle_programs):
        machine.arrive(Arrival(f"i{number}", f"idle{number}", context=Context(1)), 0.0)
        machine.start(f"i{number}", 0.0)
        machine.finish(f"i{number}", 1.0, context_tokens=1)
    for name in ("active", "inactive"):
        machine.arrive(Arrival(f"c-{name}", name, context=Context(200)), 2.0)
    return machine


def demand_at_2(machine: Machine) -> DemandSnapshot | None:
    return demand_of(machine, memory_of(machine, 2.0))


def parked_at_2(machine: Machine) -> ParkedSnapshot | None:
    return parked_of(machine, memory_of(machine, 2.0))


def test_what_waits_for_memory_survives_the_wire() -> None:
    machine = waiting_machine()
    demand = demand_at_2(machine)
    assert demand == DemandSnapshot(
        inactive_tokens=200, inactive_calls=1, between_ends_s=1.0, idle=("idle0",)
    )
    calls = tuple(
        snapshot_of(machine, machine.call(f"c-{name}"), 2.0, place=1, call_id=name, inactive_place=place)
        for name, place in (("active", None), ("inactive", 1))
    )
    sent = msgspec.structs.replace(
        snapshot(0), calls=calls, left_out=0, admission=admission_of(machine), demand=demand, spare_tokens=1
    )

    told = EngineSnapshot.from_bytes(sent.to_bytes()).memory()

    assert told is not None
    assert (told.capacity_tokens, told.active_tokens, told.active_programs) == (301, 201, 2)
    assert (told.inactive_tokens, told.inactive_calls, told.between_ends_s) == (200, 1, 1.0)
    assert told.spare_tokens == 1
    assert (told.known, told.inactive) == ({"idle0", "active", "inactive"}, {"inactive"})
    assert told.is_complete


def test_what_host_memory_keeps_survives_the_wire() -> None:
    """One parked program has a call, and so is not among those that wait for the end of another."""
    machine = waiting_machine()
    machine.admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), 1000.0)
    assert parked_at_2(machine) == ParkedSnapshot(0, 0, 800, 200, 1)
    assert parked_at_2(machine_of()) is parked_at_2(waiting_machine()) is None
    calls = tuple(
        snapshot_of(machine, machine.call(f"c-{name}"), 2.0, place=1, call_id=name, inactive_place=place)
        for name, place in (("active", None), ("inactive", 1))
    )
    sent = msgspec.structs.replace(
        snapshot(0),
        calls=(*calls, msgspec.structs.replace(calls[1], program_id="parked", is_parked=True)),
        left_out=0,
        admission=admission_of(machine),
        demand=demand_at_2(machine),
        parked=ParkedSnapshot(2, 350, 800, 200, 1),
    )

    told = EngineSnapshot.from_bytes(sent.to_bytes()).memory()

    assert told is not None
    assert (told.capacity_tokens, told.active_tokens, told.active_programs) == (800, 201 + 350, 2 + 2)
    assert (told.inactive_tokens, told.inactive_calls) == (200, 1)
    assert (told.known, told.inactive) == ({"idle0", "active", "inactive", "parked"}, {"inactive"})


def test_a_snapshot_without_calls_says_which_programs_have_some() -> None:
    """The balancer needs no more; whoever lists calls goes by the snapshot before it."""
    machine = waiting_machine()
    listed = msgspec.structs.replace(
        snapshot(3), left_out=5, admission=admission_of(machine), demand=demand_at_2(machine)
    )
    light = msgspec.structs.replace(listed, calls=(), left_out=8, present=present_of(machine))
    sent = EngineSnapshot.from_bytes(light.to_bytes())
    told = sent.memory()

    assert told is not None
    assert (told.known, told.inactive, told.is_complete) == (
        {"idle0", "active", "inactive"},
        {"inactive"},
        True,
    )
    assert present_of(machine_of()) == PresentPrograms((), ())
    merged = sent.with_calls_of(listed)
    assert (merged.calls, merged.left_out, merged.present) == (listed.calls, 5, sent.present)
    assert listed.with_calls_of(merged) is listed
    assert sent.with_calls_of(None) is sent


def test_the_programs_of_a_snapshot_without_calls_are_bounded() -> None:
    machine = Machine(SchedulerConfig(policy="plas", admission="working_set"), kv_tokens=1e9)
    for number in range(200):
        machine.arrive(Arrival(f"c{number}", f"{number}".rjust(250), context=Context(1)), 0.0)
    present = present_of(machine)

    assert not present.is_complete
    assert sum(map(len, present.others)) <= MAX_PRESENT_BYTES


def test_a_report_without_all_programs_says_so() -> None:
    machine = waiting_machine(MAX_IDLE_IDS + 1)
    demand = demand_at_2(machine)
    assert demand is not None
    assert demand.idle is None
    few = demand._replace(idle=())
    complete = msgspec.structs.replace(snapshot(0), left_out=0, admission=admission_of(machine), demand=few)

    assert [
        memory.is_complete
        for changes in ({}, {"demand": demand}, {"left_out": 3})
        if (memory := msgspec.structs.replace(complete, **changes).memory()) is not None
    ] == [True, False, False]


def test_an_engine_without_admission_reports_no_memory() -> None:
    assert (demand_at_2(machine_of()), snapshot().memory()) == (None, None)
    earlier = msgspec.structs.replace(snapshot(), admission=AdmissionSnapshot(3, 2, 500, 600))
    assert earlier.memory() is None


@pytest.mark.parametrize("id_length", [8, 250])
def test_a_message_is_bounded_and_counts_omitted_calls(id_length: int) -> None:
    """The first calls in order are listed; the others are counted."""
    message = snapshot(1000, id_length).to_bytes()
    told = EngineSnapshot.from_bytes(message)

    assert len(message) <= MAX_SNAPSHOT_BYTES
    assert list(range(1, len(told.calls) + 1)) == [call.place for call in told.calls]
    assert len(told.calls) + told.left_out == 1000 + 5
    assert len(told.calls) >= 80


def test_a_snapshot_is_distinguished_from_other_messages() -> None:
    assert EngineSnapshot.is_one(snapshot().to_bytes())
    assert not EngineSnapshot.is_one(b'{"call_id":"c"}')


def test_a_waiting_call_is_promoted_when_its_ratio_reaches_beta() -> None:
    """With 2 s of service and beta 8 a program may wait 16 s; 3 s of those it has had."""
    machine = machine_of()
    machine.arrive(Arrival("c", "p", service_s=2.0, wait_s=1.0), 10.0)
    stands = standing(machine, "c", 12.0)

    assert (stands.level, stands.is_running, stands.since_s, stands.wait_s) == (2, False, 2.0, 2.0)
    assert (stands.program_service_s, stands.program_wait_s, stands.inherited_service_s) == (2.0, 1.0, 2.0)
    assert stands.ratio == pytest.approx(1.5)
    assert stands.promotion_s == pytest.approx(13.0)
    machine.tick(24.9)
    assert standing(machine, "c", 24.9).level == 2
    machine.tick(25.0)
    promoted = standing(machine, "c", 25.0)
    assert (promoted.level, promoted.promotion_s, promoted.promotions) == (1, None, 1)


def test_a_running_call_has_a_quantum_and_no_promotion() -> None:
    machine = machine_of()
    machine.arrive(Arrival("c", "p", service_s=2.0), 0.0)
    machine.start("c", 1.0)
    machine.charge("c", 0.5, 1.5)
    stands = standing(machine, "c", 1.5)

    assert (stands.is_running, stands.since_s, stands.wait_s, stands.service_s) == (True, 0.5, 1.0, 0.5)
    assert (stands.quantum_s, stands.promotion_s, stands.call_id) == (2.5, None, "client-c")
    machine.preempt("c", 2.0)
    assert (standing(machine, "c", 3.0).since_s, standing(machine, "c", 3.0).preemptions) == (1.0, 1)


def test_the_last_level_has_no_quantum_and_without_beta_no_call_is_promoted() -> None:
    machine = machine_of(beta=math.inf)
    machine.arrive(Arrival("c", "p", service_s=5.0), 0.0)
    stands = standing(machine, "c", 1.0)

    assert (stands.level, stands.quantum_s, stands.promotion_s) == (3, None, None)
    machine.arrive(Arrival("fresh", "q"), 0.0)
    assert standing(machine, "fresh", 9.0).ratio is None


@pytest.mark.parametrize("message", [b"{", b"\xff", b"[]", b'{"snapshot":1,"step":"2"}', b"[" * 100_000])
def test_an_invalid_snapshot_is_refused(message: bytes) -> None:
    with pytest.raises(ReportError, match=r"^not an engine snapshot: "):
        EngineSnapshot.from_bytes(message)


def test_fields_of_a_later_version_are_ignored() -> None:
    message = json.loads(snapshot().to_bytes()) | {"energy_j": 3}
    message["calls"][0].append("more")

    assert snapshot() == EngineSnapshot.from_bytes(json.dumps(message).encode())
