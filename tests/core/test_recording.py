"""The lines that a recorded machine writes: names as hashes, and what it was answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autellix_backend.core.admission.contexts import fill_blocks
from autellix_backend.core.admission.working_set import WorkingSetAdmission
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import UnknownCallError
from autellix_backend.core.hints import Hints
from autellix_backend.core.machine import Machine
from autellix_backend.core.recording import FILL, MachineRecorder
from autellix_backend.reports.report import EngineReport


class Recorded:
    """A machine that is recorded, and its lines."""

    def __init__(self, **config: Any) -> None:
        self.written: list[bytes] = []
        recorder = MachineRecorder(self.written.append, b"secret", {"autellix": "1.0"})
        self.machine = recorder.make_machine(SchedulerConfig(**config), kv_tokens=1000, fill=fill_blocks(16))

    def lines(self) -> list[Any]:
        """Return the lines of events, and empty the list."""
        lines = [json.loads(line) for line in self.written]
        self.written.clear()
        return [line for line in lines if isinstance(line, list) and line[0] != FILL]

    def fills(self) -> list[Any]:
        """Return the lines about the memory that contexts fill."""
        return [line for line in map(json.loads, self.written[1:]) if line[0] == FILL]


def test_the_first_line_has_the_configuration() -> None:
    recorded = Recorded(policy="plas")
    first = json.loads(recorded.written[0])
    assert (first["format"], first["autellix"], first["kv_tokens"]) == (1, "1.0", 1000)
    assert first["config"]["policy"] == "plas"


def test_names_are_hashed_alike_and_nothing_else_of_them_is_written() -> None:
    recorded = Recorded()
    arrival = Arrival(
        "call-of-mine",
        "program-of-mine",
        tenant="tenant-of-mine",
        thread_id="thread-of-mine",
        parents=("parent-of-mine",),
        hints=Hints(group="group-of-mine", class_name="class-of-mine"),
        context=Context(40, prefix=b"prefix-of-mine", prefix_tokens=16),
    )
    recorded.machine.arrive(arrival, 1.0)
    recorded.machine.start("call-of-mine", 2.0)
    assert b"of-mine" not in b"".join(recorded.written)
    arrived, started = recorded.lines()
    name = arrived[1][0]["call_id"]
    assert started == ["start", [name, 2.0], {}, [], arrived[4]]
    assert arrived[4] == [True, *recorded.machine.call("call-of-mine").rank]
    assert len({name, arrived[1][0]["program_id"], arrived[1][0]["hints"]["group"]}) == 3
    assert arrived[1][0]["context"]["tokens"] == 40


def test_another_secret_makes_other_hashes() -> None:
    names = set()
    for secret in (b"one", b"two"):
        written: list[bytes] = []
        recorder = MachineRecorder(written.append, secret, {})
        machine = recorder.make_machine(SchedulerConfig(policy="fcfs"), kv_tokens=1000, fill=fill_blocks(16))
        machine.arrive(Arrival("c", "p"), 0.0)
        names.add(json.loads(written[-1])[1][0]["call_id"])
    assert len(names) == 2


def test_an_event_has_the_answers_that_the_machine_asked_for() -> None:
    recorded = Recorded()
    machine = recorded.machine
    for number, program in enumerate("ab"):
        machine.arrive(Arrival(f"{program}1", program, context=Context(100)), float(number))
        machine.start(f"{program}1", float(number))
    recorded.lines()
    machine.review(2.0, 16, {"a1": 120, "b1": 130}.__getitem__)
    machine.batch(1, admissible=lambda call: call.call_id == "b1")
    reviewed, batch = recorded.lines()
    assert reviewed[:1] + reviewed[2:] == ["review", {}, [120, 130], {}]
    assert reviewed[1] == [2.0, 16, "?"]
    assert batch[2:4] == [{"admissible": "?"}, [False, True]]
    assert len(batch[4]) == 1


def test_what_a_machine_does_for_another_event_is_no_event() -> None:
    recorded = Recorded()
    recorded.machine.arrive(Arrival("a1", "a"), 0.0)
    recorded.machine.start("a1", 0.0)
    recorded.machine.charge("a1", 0.5, 0.5)
    recorded.machine.pause("a1", 1.0)
    recorded.machine.end_program("a", 2.0)
    assert [line[0] for line in recorded.lines()] == ["arrive", "start", "charge", "pause", "end_program"]


def test_an_event_that_raises_is_recorded_and_raises() -> None:
    recorded = Recorded()
    with pytest.raises(UnknownCallError):
        recorded.machine.start("nobody", 1.0)
    (line,) = recorded.lines()
    assert (line[0], line[4]) == ("start", "raised")
    recorded.machine.tick(2.0)
    assert [line[0] for line in recorded.lines()] == ["tick"]


def test_how_contexts_fill_the_memory_is_written_once() -> None:
    recorded = Recorded()
    for call in ("a1", "a2"):
        recorded.machine.arrive(Arrival(call, "a", context=Context(100)), 0.0)
    assert recorded.fills().count([FILL, 100, 0, 112]) == 1


def test_answers_outside_of_events_are_not_written() -> None:
    """A snapshot asks for the loads of idle programs, too."""
    recorded = Recorded()
    asked = []

    def load(program_id: str, tokens: int) -> tuple[float, float]:
        asked.append(program_id)
        return 0.5, 0.25

    machine = recorded.machine
    machine.admission.use_host_memory(load, 5000.0)
    machine.arrive(Arrival("a1", "a", context=Context(100)), 0.0)
    machine.finish("a1", 1.0, context_tokens=100)
    recorded.lines()
    memory = machine.admission.memory
    assert memory is not None
    assert isinstance(machine.admission, WorkingSetAdmission)
    context = memory.active.contexts["a"]
    assert machine.admission.idle.of_program(context, 10.0) == pytest.approx(5.35)
    assert asked == ["a"]
    assert recorded.lines() == []


def test_a_level_change_and_the_record_of_a_call_have_their_fields() -> None:
    recorded = Recorded(policy="plas", bounds=(1.0, 2.0))
    machine = recorded.machine
    machine.arrive(Arrival("a1", "a"), 0.0)
    machine.start("a1", 0.0)
    machine.charge("a1", 1.5, 1.5)
    machine.tick(1.5)
    machine.finish("a1", 2.0)
    *_, ticked, finished = recorded.lines()
    assert ticked[4] == [
        {"call_id": finished[4]["call_id"], "old": 1, "new": 2, "reason": "demotion"},
    ]
    assert finished[4]["service_s"] == 1.5


def test_of_a_report_only_the_record_of_the_call_is_written() -> None:
    recorded = Recorded()
    machine = recorded.machine
    machine.arrive(Arrival("a1", "a"), 0.0)
    record = machine.finish("a1", 1.0)
    report = EngineReport(
        **{name: getattr(record, name) for name in record.__struct_fields__},
        request_id="request-of-mine",
        prompt_tokens=7,
        output_tokens=1,
        cached_tokens=0,
        arrival_step=0,
        finish_step=1,
        engine_steps=1,
        finish_reason="stop",
    )
    machine.charge_left(report, "", 0.1, 1.0)
    line = recorded.lines()[-1]
    assert line[1][0].keys() == set(record.__struct_fields__)


def test_stored_programs_are_hashed() -> None:
    recorded = Recorded()
    machine = recorded.machine
    machine.admission.use_host_memory(lambda *_: (0.0, 0.0), 5000.0)
    machine.arrive(Arrival("a1", "a", context=Context(100)), 0.0)
    stored = machine.admission.take_stored()
    assert stored == {"a": True}
    *_, line = recorded.lines()
    assert list(line[4].values()) == [True]
    assert "a" not in line[4]


def test_a_machine_that_is_not_recorded_has_no_trace_of_it() -> None:
    assert not vars(Machine(SchedulerConfig())).keys() & {"arrive", "tick", "batch", "review"}
