"""Admission in front of a machine's batch."""

from __future__ import annotations

from autellix_backend.core.admission import Admission
from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.table import Program


class OneProgram(Admission):
    """Admits the calls of one program at a time, the first that came."""

    def __init__(self) -> None:
        self.programs: dict[str, None] = {}

    def on_arrived(self, call: Call, program: Program) -> None:
        self.programs[program.program_id] = None

    def on_left(self, call: Call, program: Program) -> None:
        if not program.active_calls:
            del self.programs[program.program_id]

    def admits(self, call: Call) -> bool:
        return call.program_id == next(iter(self.programs))


class EvenCalls(Admission):
    """Admits by the call alone, and ignores events."""

    def admits(self, call: Call) -> bool:
        return int(call.call_id) % 2 == 0


def machine_of(admission: Admission, *calls: tuple[str, str]) -> Machine:
    machine = Machine(SchedulerConfig(), admission=admission)
    for call_id, program_id in calls:
        machine.arrive(Arrival(call_id, program_id), 0.0)
    return machine


def batch(machine: Machine, *, without: str = "") -> list[str]:
    admissible = (lambda call: call.call_id != without) if without else None
    return [call.call_id for call in machine.batch(4, admissible=admissible)]


def test_only_admitted_calls_enter_the_batch() -> None:
    machine = machine_of(OneProgram(), ("a", "p"), ("b", "q"), ("c", "p"))

    assert batch(machine) == ["a", "c"]
    assert batch(machine, without="a") == ["c"]


def test_admission_is_notified_when_calls_leave() -> None:
    machine = machine_of(OneProgram(), ("a", "p"), ("b", "q"), ("c", "p"))
    machine.finish("a", 1.0)
    assert batch(machine) == ["c"]

    machine.abort("c", 2.0)

    assert batch(machine) == ["b"]


def test_admission_may_ignore_events() -> None:
    machine = machine_of(EvenCalls(), ("1", "p"), ("2", "p"))
    assert batch(machine) == ["2"]
    machine.finish("2", 1.0)
    assert batch(machine) == []
