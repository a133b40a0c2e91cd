"""One engine's scheduler: Algorithm 1, driven by events and the time, returning decisions.

The caller reports what happens to calls (arrive, start, preempt, charge, finish, abort), lets the machine
move calls between levels (tick) and asks which calls to run (batch). The machine has no clock: `now` is in
seconds, never decreases, and only differences matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.batch import form_batch
from autellix_backend.core.call import Call, CallRecord, ChangeReason, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.core.levels import Levels
from autellix_backend.core.policies import Order, Policy, make_policy
from autellix_backend.core.share import TenantShares
from autellix_backend.core.size_order import SizeOrder
from autellix_backend.core.starvation import StarvationWatch
from autellix_backend.core.table import ProcessTable, Program

__all__ = ["Machine"]


class Machine:
    """The queues of one engine over a process table.

    The table may be shared, but a change made to it elsewhere reaches the starvation test of a waiting call
    only with the next event of the call's program on this machine.
    """

    def __init__(self, config: SchedulerConfig, table: ProcessTable | None = None) -> None:
        self.config = config
        self.table = ProcessTable() if table is None else table
        self.policy = make_policy(config.policy)
        self.shares = _make_shares(config, self.policy)
        self.last_turn_level = _last_turn_level(config, self.policy)
        """The last level in which anything happens when a quantum is used up."""
        self._calls: dict[str, Call] = {}
        self._exhausted: dict[str, Call] = {}
        self._held: dict[str, Call] = {}
        """Those of the exhausted that keep their level for now."""
        self._watch = StarvationWatch(config.beta)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Walk the active calls, the next to run first: in queue order where all are of one tenant."""
        return self.shares.order()

    def level_sizes(self) -> tuple[int, ...]:
        """Return the number of active calls in each level, running ones included; nothing without calls."""
        return self.shares.level_sizes()

    def call(self, call_id: str) -> Call:
        """Return an active call.

        Raises:
            UnknownCallError: no active call has this id.
        """
        try:
            return self._calls[call_id]
        except KeyError:
            raise UnknownCallError(call_id) from None

    def arrive(self, arrival: Arrival, now: float) -> Call:
        """Queue a new call by its program's service (Alg. 1, lines 9-14).

        Raises:
            DuplicateCallError: an active call has this id.
        """
        call_id, program_id, tenant = arrival.call_id, arrival.program_id, arrival.tenant
        if call_id in self._calls:
            raise DuplicateCallError(call_id)
        program = self.table.begin(program_id, call_id, now, thread_id=arrival.thread_id)
        self.table.merge(program_id, arrival.service_s, arrival.wait_s)
        if arrival.expected_s is not None:
            program.expected_s = arrival.expected_s
        call = Call(
            call_id=call_id,
            program_id=program_id,
            thread_id=arrival.thread_id,
            tenant=tenant,
            arrival_s=now,
            waiting_since_s=now,
            inherited_service_s=self._inherited(program, arrival),  # Alg. 1, line 11
            expected_s=arrival.expected_s,
        )
        call.size_s = self._size(call, program)
        self._calls[call_id] = call
        self.shares.enter(tenant, arrival.weight)
        queue = self.shares.queue(tenant)
        queue.append(call, queue.level_of(call.inherited_service_s))  # Alg. 1, lines 12-13
        self._watch_program(program, now)
        self._review_sizes(program, other_than=call)
        return call

    def start(self, call_id: str, now: float) -> None:
        """Note that a waiting call was given a slot.

        Raises:
            UnknownCallError: no active call has this id.
            IllegalMoveError: the call is running.
        """
        call = self.call(call_id)
        call.start(now)
        self.shares.run(call.tenant)
        queue = self.shares.queue(call.tenant)
        if self.policy.holds_slots and isinstance(queue, SizeOrder):
            queue.hold(call)
            self._watch.forget(call)

    def preempt(self, call_id: str, now: float) -> None:
        """Note that a running call was preempted; it keeps its place in the queue.

        Raises:
            UnknownCallError: no active call has this id.
            IllegalMoveError: the call is waiting.
        """
        call = self.call(call_id)
        call.preempt(now)
        self.shares.wait(call.tenant)
        self._watch_call(call, now)

    def charge(
        self,
        call_id: str,
        cost_s: float,
        now: float,  # noqa: ARG002 - every event has a time
        *,
        is_reading: bool = False,
    ) -> None:
        """Charge a call the model time of a step it was part of; it may have been preempted since.

        Args:
            is_reading: whether the step read several tokens of its context.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        call.service_s += cost_s
        call.quantum_s -= cost_s
        call.catch_up_s += cost_s if is_reading else -cost_s
        self.shares.charge(call.tenant, cost_s)
        if call.quantum_s <= 0 and call.level <= self.last_turn_level:
            self._exhausted[call_id] = call

    def finish(self, call_id: str, now: float) -> CallRecord:
        """Let a completed call leave and charge its program (Alg. 1, lines 16-19).

        Raises:
            UnknownCallError: no active call has this id.
        """
        return self._leave(call_id, now, is_aborted=False)

    def abort(self, call_id: str, now: float) -> CallRecord:
        """Let an abandoned call leave; its program is charged for what ran.

        Raises:
            UnknownCallError: no active call has this id.
        """
        return self._leave(call_id, now, is_aborted=True)

    def tick(self, now: float) -> list[LevelChange]:
        """Demote and promote what has to be, in queue order (Alg. 1, lines 20-30).

        Beyond the paper, a promoted call keeps its level until it has written for as long as it read since it
        got its slot, and under `round_robin` every call its turn. Else calls whose contexts are longer to
        read than a quantum, and together larger than the cache, could take turns for ever: each loses what it
        has read before its next turn.

        The cost is that of the calls concerned: those whose quantum is used up or whose deadline has passed.
        """
        due = {call.call_id: call for call in self._watch.pop_due(now)}
        concerned = sorted({**due, **self._exhausted}.values(), key=_queue_order)
        changes: list[LevelChange] = []
        self._held = {}
        for call in concerned:
            program = self.table[call.program_id]
            if call.call_id in self._exhausted and self._keeps_level(call):
                self._held[call.call_id] = call
            elif call.call_id in self._exhausted:  # Alg. 1, line 20
                changes.append(self._take_turn(call, program))
            if call.level > 1 and self._watch.is_starving(call, program, now):  # Alg. 1, lines 24-26
                changes.append(self._promote(call, now))
            self._watch.watch(call, program, now)
        self._exhausted = dict(self._held)
        return changes

    @property
    def has_held_turns(self) -> bool:
        """Whether the last tick put off the end of a turn until its call has written more."""
        return bool(self._held)

    @property
    def has_turns_due(self) -> bool:
        """Whether the next tick will look at a call because of its quantum or its size."""
        return bool(self._exhausted)

    @property
    def next_deadline_s(self) -> float:
        """A time before which no waiting call starves, if no event comes in between."""
        return self._watch.next_deadline_s

    def batch(
        self,
        slots: int,
        *,
        capacity: float = math.inf,
        cost: Callable[[Call], float] | None = None,
        admissible: Callable[[Call], bool] | None = None,
    ) -> list[Call]:
        """Return the calls that should run, running ones included (Alg. 1, lines 32-39).

        Args:
            slots: how many calls the engine runs at once.
            capacity, cost: what the engine can hold, and what a call would take of it.
            admissible: passes over calls that cannot run in this step, without ending the walk.
        """
        return form_batch(self.shares.order(admissible), slots, capacity=capacity, cost=cost)

    def rank(self, call_id: str) -> tuple[int, float, int]:
        """Return the call's place (level, size, seq) in the total order of its tenant; lower runs first.

        Raises:
            UnknownCallError: no active call has this id.
        """
        return _queue_order(self.call(call_id))

    def end_program(self, program_id: str) -> None:
        """Drop a program's entry, at once or with its last active call."""
        self.table.end(program_id)

    def expire(self, now: float, idle_s: float) -> list[str]:
        """Drop the programs that were idle for this long and return their ids."""
        return self.table.expire(now, idle_s)

    def check(self) -> None:
        """Assert the invariants of the machine and its parts."""
        self.shares.check()
        self.table.check()
        assert {call.call_id for call in self} == self._calls.keys()
        for call_id, call in self._calls.items():
            assert call_id in self.table[call.program_id].active_calls, call
            assert call.wait_mark_s >= 0, call
            assert call.service_mark_s <= call.service_s, call
        assert self._held.keys() <= self._exhausted.keys() <= self._calls.keys()
        self._watch.check()

    def _leave(self, call_id: str, now: float, *, is_aborted: bool) -> CallRecord:
        call = self.call(call_id)
        record = call.record(now, is_aborted=is_aborted)
        program = self.table.complete(  # Alg. 1, line 17
            call.program_id,
            call_id,
            now,
            policy=self.policy,
            inherited_service_s=call.inherited_service_s,
            service_s=record.service_s,
            wait_s=record.table_wait_s,
        )
        self.shares.queue(call.tenant).remove(call)  # Alg. 1, line 18
        self.shares.leave(call)
        del self._calls[call_id]
        self._exhausted.pop(call_id, None)
        self._held.pop(call_id, None)
        self._watch.forget(call)
        self._watch_program(program, now)
        self._review_sizes(program)
        return record

    def _inherited(self, program: Program, arrival: Arrival) -> float:
        if not self.policy.reads_parents:
            return self.policy.inherit(program.service_s)
        if arrival.inherited_s is not None:
            return arrival.inherited_s
        parent_ends_s = self.table.parent_ends_s(program.program_id, arrival.parents)
        return self.policy.inherit(program.service_s, parent_ends_s)

    def _size(self, call: Call, program: Program) -> float:
        """Return the size that the call is ordered by now; what it received itself is known to be done."""
        if self.policy.order is not Order.SIZE:
            return 0.0
        if not self.policy.shares_size:
            return self.policy.size(call.expected_s, program.service_s)
        size_s = self.policy.size(program.expected_s, program.service_s)
        if program.expected_s is None:
            return size_s + call.service_s
        return max(0.0, size_s - call.service_s)

    def _review_sizes(self, program: Program, *, other_than: Call | None = None) -> None:
        """Have the next tick look at the places of a program's calls, whose remainder has changed."""
        if self.policy.shares_size:
            for call_id in program.active_calls:
                call = self._calls.get(call_id)
                if call is not None and call is not other_than and call.level > 1:
                    self._exhausted[call_id] = call

    def _keeps_level(self, call: Call) -> bool:
        if self.policy.order is Order.LEVELS and not call.promotions:
            return False
        return self.policy.order is not Order.SIZE and call.is_catching_up

    def _take_turn(self, call: Call, program: Program) -> LevelChange:
        """Give a call whose quantum is used up the place that the policy has for it."""
        if self.policy.order is Order.LEVELS:
            return self._demote(call)
        reason = ChangeReason.ROTATION
        queue = self.shares.queue(call.tenant)
        if isinstance(queue, SizeOrder):
            reason = ChangeReason.RESIZING
            queue.resize(call, self._size(call, program))
        else:
            queue.move(call, call.level)
        return LevelChange(call_id=call.call_id, old=call.level, new=call.level, reason=reason)

    def _demote(self, call: Call) -> LevelChange:
        old = call.level
        self.shares.queue(call.tenant).move(call, old + 1)  # Alg. 1, lines 21-22
        call.demotions += 1
        return LevelChange(call_id=call.call_id, old=old, new=call.level, reason=ChangeReason.DEMOTION)

    def _promote(self, call: Call, now: float) -> LevelChange:
        old = call.level
        self.shares.queue(call.tenant).move(call, 1)  # Alg. 1, line 27
        call.reset_ratio(now)  # Alg. 1, line 29
        call.promotions += 1
        self._watch.forget(call)
        return LevelChange(call_id=call.call_id, old=old, new=1, reason=ChangeReason.PROMOTION)

    def _watch_call(self, call: Call, now: float) -> None:
        self._watch.watch(call, self.table[call.program_id], now)

    def _watch_program(self, program: Program, now: float) -> None:
        """Look again at the program's active calls, whose ratio its entry's change may have raised."""
        for call_id in program.active_calls:
            call = self._calls.get(call_id)
            if call is not None:
                self._watch.watch(call, program, now)


def _make_shares(config: SchedulerConfig, policy: Policy) -> TenantShares:
    """Make the queues, one for each tenant, with numbers that order the calls of all."""
    numbers = count()

    def make_queue() -> Levels | SizeOrder:
        if policy.order is Order.SIZE:
            return SizeOrder(config.first_quantum_s, numbers)
        if policy.order is Order.ROTATION:
            return Levels((), (config.first_quantum_s,), numbers)
        return (
            Levels(config.bounds, config.quanta, numbers)
            if policy.order is Order.LEVELS
            else Levels((), numbers=numbers)
        )

    return TenantShares(config.share_slice_s, make_queue, holds_slots=policy.holds_slots)


def _last_turn_level(config: SchedulerConfig, policy: Policy) -> int:
    """Return the last level in which anything happens when a quantum is used up."""
    if policy.order is Order.LEVELS:
        return config.level_count - 1 if config.demotes else 0
    if policy.order is Order.SIZE:
        return 2 if policy.shares_size else 0
    return 1 if policy.order is Order.ROTATION else 0


def _queue_order(call: Call) -> tuple[int, float, int]:
    return (call.level, call.size_s, call.seq)
