"""A unit-step driver over the machine: it takes programs of known length and returns all events.

Events at time t happen before the step [t, t+1). Order inside an instant: finishes, arrivals (by program,
then call), demotions and promotions, batch. With a period of N steps the last three happen every N steps;
in between, slots that fall free are refilled from the queues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import Call, CallRecord, ChangeReason
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine

Key = tuple[int, int]
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of a program: its length, the calls it waits for, and the pause after them."""

    steps: int
    parents: tuple[int, ...] = ()
    delay: int = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One program: when it arrives, and its calls."""

    arrival: int = 0
    calls: Sequence[Step]
    tenant: str = ""
    weight: float = 1.0


@dataclass(kw_only=True)
class Outcome:
    """What happened: events, the running calls of each busy step, and a record per call."""

    events: list[Event] = field(default_factory=list)
    gantt: list[list[Any]] = field(default_factory=list)
    records: dict[Key, CallRecord] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        return max(record.finish_s for record in self.records.values())

    @property
    def total_wait(self) -> float:
        return sum(record.wait_s for record in self.records.values())

    def finish_of(self, program: int) -> float:
        return max(record.finish_s for (index, _), record in self.records.items() if index == program)


class UnitStep:
    """Runs workloads on a machine with some slots, one unit of time per step."""

    def __init__(self, config: SchedulerConfig, slots: int, workloads: Sequence[Workload]) -> None:
        self.machine = Machine(config)
        self.outcome = Outcome()
        self._slots = slots
        self._workloads = workloads
        self._left = {
            (i, j): call.steps
            for i, workload in enumerate(workloads)
            for j, call in enumerate(workload.calls)
        }
        self._unseen = sorted(self._left)

    def run(self) -> Outcome:
        now = 0
        while len(self.outcome.records) < len(self._left):
            self._finish(now)
            if now % self.machine.config.period_steps == 0:
                self._arrive(now)
                self._tick(now)
                self._batch(now)
            else:
                self._refill(now)
            self.machine.check()
            self._step(now)
            now += 1
        return self.outcome

    def _finish(self, now: int) -> None:
        for call in [call for call in self.machine if self._left[_key(call.call_id)] == 0]:
            key = _key(call.call_id)
            program = self.machine.table[call.program_id]
            self.outcome.records[key] = self.machine.finish(call.call_id, now)
            self._note(now, "finish", key, pt_service=program.service_s, pt_wait=program.wait_s)

    def _arrive(self, now: int) -> None:
        for key in [key for key in self._unseen if self._is_due(key, now)]:
            self._unseen.remove(key)
            workload = self._workloads[key[0]]
            call = self.machine.arrive(
                Arrival(
                    _name(key),
                    str(key[0]),
                    parents=self._parents(key),
                    expected_s=self._expected(key),
                    tenant=workload.tenant,
                    weight=workload.weight,
                ),
                now,
            )
            self._note(now, "enqueue", key, service=call.inherited_service_s, q=call.level)

    def _parents(self, key: Key) -> list[str]:
        return [_name((key[0], parent)) for parent in self._workloads[key[0]].calls[key[1]].parents]

    def _expected(self, key: Key) -> float:
        """Return the truth: what is left of the call (sjf) or of its program."""
        if not self.machine.policy.sizes_programs:
            return self._left[key]
        return sum(left for (program, _), left in self._left.items() if program == key[0])

    def _is_due(self, key: Key, now: int) -> bool:
        workload = self._workloads[key[0]]
        call = workload.calls[key[1]]
        parents = [self.outcome.records.get((key[0], parent)) for parent in call.parents]
        ready = max((parent.finish_s if parent else now + 1 for parent in parents), default=workload.arrival)
        return ready + call.delay <= now

    def _tick(self, now: int) -> None:
        ratios = {call.call_id: self._ratio(call, now) for call in self.machine}
        for change in self.machine.tick(now):
            if change.reason is ChangeReason.DEMOTION:
                self._note(now, "demote", _key(change.call_id), q=change.new)
            else:
                self._note(now, "promote", _key(change.call_id), ratio=ratios[change.call_id])

    def _ratio(self, call: Call, now: int) -> float:
        program = self.machine.table[call.program_id]
        service_s = program.service_s + call.unpaid_service_s
        return (program.wait_s + call.unpaid_wait_at(now)) / service_s if service_s else math.nan

    def _batch(self, now: int) -> None:
        chosen = self.machine.batch(self._slots)
        for call in [call for call in self.machine if call.is_running and call not in chosen]:
            self.machine.preempt(call.call_id, now)
            self._note(now, "preempt", _key(call.call_id))
        for call in chosen:
            if not call.is_running:
                self.machine.start(call.call_id, now)

    def _refill(self, now: int) -> None:
        free = self._slots - sum(call.is_running for call in self.machine)
        for call in self.machine.batch(free, admissible=lambda call: not call.is_running):
            self.machine.start(call.call_id, now)

    def _step(self, now: int) -> None:
        running = sorted(_key(call.call_id) for call in self.machine if call.is_running)
        for key in running:
            self._left[key] -= 1
            self.machine.charge(_name(key), 1, now + 1)
        if running:
            self.outcome.gantt.append([now, *(list(key) for key in running)])

    def _note(self, now: int, event: str, key: Key, **facts: float) -> None:
        self.outcome.events.append({"t": now, "ev": event, "call": list(key), **facts})


def _name(key: Key) -> str:
    return f"{key[0]}.{key[1]}"


def _key(call_id: str) -> Key:
    program, call = call_id.split(".")
    return int(program), int(call)
