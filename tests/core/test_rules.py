"""A policy or an admission rule of one's own runs in a machine that knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest

from autellix_backend.core.admission import Admission, AdmissionInputs, make_admission
from autellix_backend.core.admission.base import NEVER_STEPS
from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import ADMISSION_NAMES
from autellix_backend.core.place import Place
from autellix_backend.core.policies.base import Policy, QueueInputs
from autellix_backend.core.queues.base import Queue
from autellix_backend.core.queues.programs import ProgramQueue
from autellix_backend.core.statistics import PrefillCost, ProgramStatistics, TokenCost
from autellix_backend.core.table import Program


class LastComeFirstServed(Policy):
    """The youngest program goes first."""

    name: ClassVar[str] = "lcfs"

    def make_queue(self, inputs: QueueInputs) -> Queue:
        return ProgramQueue(partial(self.place, boost=inputs.boost), inputs.numbers)

    def place(self, program: Program, boost: ProgramBoost) -> Place:
        return Place(-program.created_s)


class OneAtATime(Admission):
    """Admits the calls of one program until it ends."""

    def __init__(self) -> None:
        self._first = ""
        self._waiting: list[Call] = []

    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:
        self._first = self._first or call.program_id
        call.is_admitted = self._first == call.program_id
        if not call.is_admitted:
            self._waiting.append(call)

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        if call in self._waiting:
            self._waiting.remove(call)

    def forget(self, program_id: str) -> None:
        if program_id == self._first:
            self._first = ""

    def is_due(self, step: int) -> bool:
        return not self._first and bool(self._waiting)

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:
        call = self._waiting.pop(0)
        self._first, call.is_admitted = call.program_id, True
        return [call]


def test_a_policy_orders_the_calls() -> None:
    machine = Machine(SchedulerConfig(), policy=LastComeFirstServed())
    for now, program in enumerate("abc"):
        machine.arrive(Arrival(f"{program}1", program), float(now))
    machine.check()

    assert [call.call_id for call in machine.batch(2)] == ["c1", "b1"]


def test_an_admission_rule_holds_calls_back() -> None:
    machine = Machine(SchedulerConfig(policy="fcfs"), admission=OneAtATime())
    machine.arrive(Arrival("a1", "a"), 0.0)
    machine.arrive(Arrival("b1", "b"), 1.0)
    assert [call.call_id for call in machine] == ["a1"]
    assert machine.review(2.0, 0, lambda _: 0) == []

    machine.finish("a1", 3.0)
    machine.end_program("a", 3.0)

    assert machine.review(3.0, 0, lambda _: 0) == ["b1"]
    assert [call.call_id for call in machine] == ["b1"]


@pytest.mark.parametrize("name", ADMISSION_NAMES)
@pytest.mark.parametrize("kv_tokens", [1000.0, float("inf")])
def test_only_bounded_memory_is_allotted(name: str, kv_tokens: float) -> None:
    admission = make_admission(
        AdmissionInputs(
            config=SchedulerConfig(admission=name),
            kv_tokens=kv_tokens,
            statistics=ProgramStatistics(),
            token_cost=TokenCost(0.005),
            prefill=PrefillCost(),
            place_of=lambda program: Place(program.created_s),
            holding={},
        )
    )

    assert (admission.memory is not None) is (name == "working_set" and kv_tokens == 1000.0)


def test_by_default_every_program_is_admitted_for_good() -> None:
    admission = Admission()
    admission.use_host_memory(lambda program_id, tokens: (1.0, 0.0), 1000.0)

    assert (admission.is_due(0), admission.steps_to_review(0)) == (False, NEVER_STEPS)
    assert admission.review(0.0, 0, lambda _: 0) == []
    assert admission.take_to_keep() == []
    assert admission.take_stored() == {}
