"""One engine's scheduler: Algorithm 1, driven by events and the time, returning decisions.

The caller reports what happens to calls (arrive, start, preempt, charge, finish, abort), lets the machine
move calls between levels (tick) and asks which calls to run (batch). The machine has no clock: `now` is in
seconds, never decreases, and only differences matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from operator import attrgetter

from autellix_backend.core.admission import Admission, AdmissionInputs, make_admission
from autellix_backend.core.admission.contexts import KvFill, count_tokens
from autellix_backend.core.arrival import Arrival
from autellix_backend.core.batch import form_batch
from autellix_backend.core.boost import ProgramBoost
from autellix_backend.core.call import Call, CallRecord, ChangeReason, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import DuplicateCallError, UnknownCallError
from autellix_backend.core.places import ProgramPlaces
from autellix_backend.core.policies import Policy, make_policy
from autellix_backend.core.policies.base import QueueInputs
from autellix_backend.core.quanta import QuantumWatch
from autellix_backend.core.starvation import StarvationWatch
from autellix_backend.core.statistics import PrefillCost, TokenCost
from autellix_backend.core.table import ProcessTable, Program
from autellix_backend.core.tenant_shares import TenantShares

_rank = attrgetter("level", "key", "seq")


class Machine:
    """The queues of one engine over a process table.

    The table may be shared, but a change made to it elsewhere reaches the starvation test of a waiting call
    only with the next event of the call's program on this machine.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: ProcessTable | None = None,
        kv_tokens: float = math.inf,
        policy: Policy | None = None,
        admission: Admission | None = None,
        fill: KvFill = count_tokens,
    ) -> None:
        """Make an engine's empty queues.

        Args:
            config: The scheduler's configuration.
            table: The process table; None makes one.
            kv_tokens: The KV memory of the engine, in tokens.
            policy: The policy; None takes the configured one.
            admission: The admission rule; None takes the configured one.
            fill: How contexts fill the KV memory.
        """
        self.config = config
        self.table = ProcessTable() if table is None else table
        self.policy = policy or make_policy(config.policy)
        self.preempts = self.policy.reorders and self.policy.preempts and config.preemption != "never"
        """Whether a waiting call may take the slot of a running one that comes after it."""
        self.beta = config.beta if self.policy.promotes else math.inf
        """The wait/service ratio at which calls are promoted."""
        self.token_cost = TokenCost(config.token_s)
        self.prefill = PrefillCost()
        self.boost = ProgramBoost(config.boost, self.table.statistics, self.token_cost)
        self.places = ProgramPlaces(self.policy, self.boost)
        self.holding: dict[str, dict[str, Call]] = {}
        """The calls that hold KV memory, by program; none is empty."""
        inputs = AdmissionInputs(
            config=config,
            kv_tokens=kv_tokens,
            fill=fill,
            statistics=self.table.statistics,
            token_cost=self.token_cost,
            prefill=self.prefill,
            place_of=self.places.of,
            boosts=self.boost,
            holding=self.holding,
        )
        self.admission = make_admission(inputs) if admission is None else admission
        self.shares = TenantShares(
            config.share_slice_s,
            # One sequence for the queues of all tenants orders the calls of all.
            partial(self.policy.make_queue, QueueInputs(config, count(), self.boost)),
            holds_slots=self.policy.holds_slots,
        )
        self.quanta = QuantumWatch()
        self.starvation = StarvationWatch(self.beta)
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Walk the admitted calls, the next to run first: in queue order where all are of one tenant."""
        return self.shares.order()

    def refused(self) -> Iterator[Call]:
        """Walk the calls that admission keeps out of the queues, in order of arrival."""
        return (call for call in self._calls.values() if not call.is_admitted)

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
        call_id, program_id = arrival.call_id, arrival.program_id
        if call_id in self._calls:
            raise DuplicateCallError(call_id)
        program = self.table.begin(
            program_id, call_id, now, thread_id=arrival.thread_id, tenant=arrival.tenant
        )
        self.table.merge(program_id, arrival.service_s, arrival.wait_s, arrival.work)
        _update(program, arrival, now)
        if self.policy.boosts:
            self.boost.on_arrival(program, now)
        if arrival.hints.group:
            self.table.join(program, arrival.hints.group)
        call = self._calls[call_id] = Call(
            call_id=call_id,
            program_id=program_id,
            thread_id=arrival.thread_id,
            tenant=arrival.tenant,
            weight=arrival.weight,
            new_tokens=arrival.new_tokens,
            arrival_s=now,
            waiting_since_s=now,
            inherited_service_s=self._inherited(program, arrival),  # Alg. 1, line 11
            path_id=arrival.path_id,
            expected_s=arrival.expected_s,
            hints=arrival.hints,
            is_pinned=arrival.is_pinned,
        )
        program.waiting_work += call.new_tokens
        if call.is_pinned:
            self._hold(call)
        self.admission.arrive(call, program, arrival.context, now)
        if call.is_admitted:
            self.shares.enter(call.tenant, call.weight).insert(call, program)  # Alg. 1, lines 12-13
        else:
            call.withdraw(now)
        self._review(call, program, now)
        if call.level > 1:
            self.starvation.watch(call, program, now)
        return call

    def start(self, call_id: str, now: float) -> None:
        """Give a waiting call a slot.

        Raises:
            UnknownCallError: no active call has this id.
            IllegalMoveError: the call is running.
        """
        call = self.call(call_id)
        call.start(now)
        self._hold(call)
        self.shares.run(call.tenant)
        self.shares.queue(call.tenant).on_started(call)
        if call.level == 1 and self.policy.promotes:
            self.starvation.forget(call)

    def preempt(self, call_id: str, now: float, *, computed_tokens: int = 0) -> None:
        """Take the slot of a running call, which keeps its place in the queue if its program is active.

        Args:
            call_id: The call.
            now: The time.
            computed_tokens: The tokens of its context that it has computed.

        Raises:
            UnknownCallError: no active call has this id.
            IllegalMoveError: the call is waiting.
        """
        call = self.call(call_id)
        call.preempt(now, computed_tokens)
        if not call.is_pinned:
            self._release(call)
        self.shares.wait(call.tenant)
        if not (call.is_pinned or self.admission.is_active(call.program_id)):
            call.is_admitted = False
            self._withdraw(call, now)
        self.starvation.watch(call, self.table[call.program_id], now)

    def pause(self, call_id: str, now: float) -> None:
        """Let a call wait for its client with its KV memory; where all calls of a program do, it is idle.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        if call.is_running:
            self.shares.wait(call.tenant)
        call.pause(now)
        self.pin(call_id)
        self.starvation.watch(call, self.table.pause(call.program_id, now), now)

    def resume(self, call_id: str, now: float) -> None:
        """Let a paused call wait for a slot again.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        call.resume(now)
        self.starvation.watch(call, self.table.resume(call.program_id, now), now)

    def pin(self, call_id: str) -> None:
        """Note that a call holds KV memory while it waits, also while its program is inactive.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        call.is_pinned = True
        self._hold(call)

    def unpin(self, call_id: str) -> None:
        """Note that a call holds KV memory only while it runs; it need not be pinned.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        call.is_pinned = False
        if not call.is_running:
            self._release(call)

    def readmit(self, call_id: str, now: float) -> None:
        """Let a preempted call go on to its end, although its program may have become inactive.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        self.pin(call_id)
        if not call.is_admitted:
            call.is_admitted = True
            self._enter(call, now)

    def charge(
        self,
        call_id: str,
        cost_s: float,
        now: float,
        *,
        is_prefill: bool = False,
        tokens: int = 1,
        steps: int = 1,
    ) -> None:
        """Charge a call the model time of a step it was part of; it may have been preempted since.

        Args:
            call_id: The call.
            cost_s: The model time.
            now: The time.
            is_prefill: Whether the step computed several tokens of its context.
            tokens: The tokens that it computed.
            steps: How many equal steps these are.

        Raises:
            UnknownCallError: no active call has this id.
        """
        call = self.call(call_id)
        self.charge_step((call,), cost_s, now, is_prefill=is_prefill, tokens=tokens, steps=steps)

    def charge_step(
        self,
        calls: Iterable[Call],
        cost_s: float,
        now: float,
        *,
        is_prefill: bool = False,
        tokens: int = 1,
        steps: int = 1,
    ) -> None:
        """Charge several active calls the same steps, as `charge` does one of them."""
        shares: dict[str, int] = {}
        for call in calls:
            is_first = call.service_s == call.service_mark_s
            call.charge(cost_s, is_prefill=is_prefill, tokens=tokens, steps=steps)
            shares[call.tenant] = shares.get(call.tenant, 0) + 1
            if is_first and call.level > 1:
                self.starvation.watch(call, self.table[call.program_id], now)
            if call.is_quantum_binding and call.quantum_s <= 0 and call.is_admitted:
                self.quanta.add(call)
        for tenant, charged in shares.items():
            self.shares.charge(tenant, charged * cost_s)

    def charge_left(self, record: CallRecord, tenant: str, cost_s: float, now: float) -> None:
        """Charge the model time of a step to the program of a call that left during it, if that is there yet.

        Args:
            record: The call's, without that step; its id is that by which later calls know it.
            tenant: Its tenant, which is charged in any case.
            cost_s: The model time.
            now: The time.
        """
        self.shares.charge(tenant, cost_s)
        program = self.table.add_service(
            record.program_id,
            record.call_id,
            policy=self.policy,
            inherited_service_s=record.inherited_service_s + record.service_s,
            service_s=cost_s,
        )
        if program is not None:
            self.starvation.review(program, now)
            self._resize(program)

    def finish(self, call_id: str, now: float, *, work: float = 0.0, context_tokens: int = 0) -> CallRecord:
        """Remove a completed call and charge its program (Alg. 1, lines 16-19).

        Args:
            call_id: The call.
            now: The time.
            work: What it took, by `core.boost.work_of` its prompt tokens that were not cached and its output.
            context_tokens: Its whole context, of which the next call of its program may find the KV blocks.

        Raises:
            UnknownCallError: no active call has this id.
        """
        return self._leave(call_id, now, work, context_tokens, is_aborted=False)

    def abort(self, call_id: str, now: float, *, work: float = 0.0) -> CallRecord:
        """Remove an abandoned call; its program is charged for what ran.

        Raises:
            UnknownCallError: no active call has this id.
        """
        return self._leave(call_id, now, work, 0, is_aborted=True)

    def end_program(self, program_id: str, now: float) -> None:
        """End a program, which may be unknown; its active calls go on."""
        ended = self.table.end(program_id, now)
        self.forget_program(program_id)
        if ended is not None:
            self._move_group(ended)

    def forget_program(self, program_id: str) -> None:
        """Free the KV memory that is kept for a program that has ended; its active calls go on."""
        self.admission.forget(program_id)

    def expire(self, now: float, idle_s: float) -> None:
        """End the programs without active calls that were idle for this long."""
        for program_id in self.table.expire(now, idle_s):
            self.forget_program(program_id)

    def observe_step(self, work: float, seconds: float, steps: int = 1, prefilled: int | None = None) -> None:
        """Learn prices from equal steps: the work of one, its duration (s), its prompt tokens if known."""
        self.token_cost.observe(work, seconds, steps)
        if prefilled is not None:
            self.prefill.observe(prefilled, seconds, steps)

    def observe_spread(self, tenant: str, spread: float) -> None:
        """Learn the spread of a tenant's sizes as another table has measured it."""
        self.table.statistics.sizes_of(tenant).known = spread

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[str]:
        """Review which programs may run, if there is reason to; call before each `tick`.

        Args:
            now: The time.
            step: The number of steps that the engine has made.
            tokens_of: Returns the present context (tokens) of an active call.

        Returns:
            The calls that were admitted or withdrawn; `Call.is_admitted` has which.
        """
        self.boost.renew(now)
        self.places.move_marked(self._move)
        if not self.admission.is_due(step):
            return []
        changed = self.admission.review(now, step, tokens_of)
        for call in changed:
            if call.is_admitted:
                self._enter(call, now)
            else:
                self._withdraw(call, now)
        return [call.call_id for call in changed]

    def tick(self, now: float) -> list[LevelChange]:
        """Demote and promote calls in queue order (Alg. 1, lines 20-30).

        Beyond the paper, a queue may defer a call whose quantum is used up: a promoted call keeps its level,
        and under `round_robin` every call its place, until it has decoded for as long as it prefilled since
        it got its slot. Without this, calls whose prefill takes longer than a quantum, and whose contexts
        together exceed the cache, could replace each other endlessly: each would lose its context before it
        resumes.

        The cost is that of the calls concerned: those whose quantum is used up or whose deadline has passed.
        """
        self.boost.renew(now)
        changes: list[LevelChange] = []
        if not self.quanta.is_due and now < self.starvation.next_deadline_s:
            return changes
        used = self.quanta.pop()
        starving = {call.call_id: call for call in self.starvation.pop_due(now)}
        for call in sorted({**starving, **used}.values(), key=_rank):
            program = self.table[call.program_id]
            queue = self.shares.queue(call.tenant)
            if call.call_id in used:
                if queue.is_deferred(call):
                    self.quanta.defer(call)
                else:
                    changes.append(queue.on_quantum_used(call, program))  # Alg. 1, line 20
            if call.level > 1 and self.starvation.is_starving(call, program, now):  # Alg. 1, lines 24-26
                changes.append(self._promote(call, now))
            self.starvation.watch(call, program, now)
        return changes

    def batch(self, slots: int, *, admissible: Callable[[Call], bool] | None = None) -> list[Call]:
        """Return the calls that should run, running ones included (Alg. 1, lines 32-39).

        Args:
            slots: How many calls the engine runs at once.
            admissible: Skips calls that cannot run in this step, without ending the walk.
        """
        return form_batch(self.shares.order(admissible), slots)

    def check(self) -> None:
        """Assert the invariants of the machine and its parts."""
        self.shares.check()
        self.table.check()
        self.quanta.check()
        self.starvation.check()
        admitted = {call_id for call_id, call in self._calls.items() if call.is_admitted}
        assert {call.call_id for call in self} == admitted
        assert all(call.is_admitted for call in self._calls.values() if call.is_running)
        self.admission.check()
        holding = {call_id for calls in self.holding.values() for call_id in calls}
        assert holding == {name for name, call in self._calls.items() if call.is_running or call.is_pinned}
        assert all(self.holding.values())
        for call_id, call in self._calls.items():
            assert call_id in self.table[call.program_id].active_calls, call
            assert call.wait_mark_s >= 0, call
            assert call.service_mark_s <= call.service_s, call

    def _leave(
        self, call_id: str, now: float, work: float, context_tokens: int, *, is_aborted: bool
    ) -> CallRecord:
        call = self.call(call_id)
        if call.is_paused:
            self.resume(call_id, now)
        record = call.record(now, is_aborted=is_aborted)
        self.table[call.program_id].waiting_work -= call.new_tokens
        program = self.table.complete(  # Alg. 1, line 17
            call.program_id,
            call_id,
            now,
            policy=self.policy,
            inherited_service_s=call.inherited_service_s,
            service_s=record.service_s,
            wait_s=record.table_wait_s,
            work=work,
            path_id=call.path_id,
        )
        if call.is_admitted:
            self.shares.leave(call)  # Alg. 1, line 18
        del self._calls[call_id]
        self._release(call)
        self.quanta.forget(call)
        if self.policy.promotes:
            self.starvation.forget(call)
        if self.policy.boosts and not is_aborted:
            self.boost.on_finished(program, work)
        self._review(call, program, now)
        self.admission.leave(call, program, context_tokens, now)
        self._move_group(program)
        return record

    def _move_group(self, program: Program) -> None:
        """Give the others of a program's group a head start, if it has left the table."""
        if program.group is not None and program.program_id not in self.table:
            self.places.mark(program.group.living)

    def _hold(self, call: Call) -> None:
        self.holding.setdefault(call.program_id, {})[call.call_id] = call

    def _release(self, call: Call) -> None:
        """Forget that a call holds KV memory; it may hold none."""
        holding = self.holding.get(call.program_id)
        if holding is not None:
            holding.pop(call.call_id, None)
            if not holding:
                del self.holding[call.program_id]

    def _enter(self, call: Call, now: float) -> None:
        """Queue a waiting call that is admitted again."""
        program = self.table[call.program_id]
        call.enter(now)
        self.shares.enter(call.tenant, call.weight).insert(call, program)
        self._review(call, program, now)
        self.starvation.watch(call, program, now)

    def _withdraw(self, call: Call, now: float) -> None:
        """Take a waiting call out of its queue, until its program is active again."""
        self.shares.leave(call)
        if self.quanta.forget(call):
            # It leaves the move of its program to the next call.
            self._mark_moved(self.table[call.program_id], call.tenant)
        self.starvation.forget(call)
        call.withdraw(now)

    def _move(self, program_id: str) -> int:
        """Give a program its present place, and have the tick move it; return how many calls it has."""
        self.admission.move(program_id)
        program = self.table.get(program_id)
        if program is None:
            return 0
        self._mark_moved(program, program.tenant)
        return len(program.active_calls)

    def _inherited(self, program: Program, arrival: Arrival) -> float:
        if not self.policy.reads_parents:
            return self.policy.inherit(program.service_s)
        if arrival.inherited_s is not None:
            return arrival.inherited_s
        parent_ends_s = self.table.parent_ends_s(program.program_id, arrival.parents)
        return self.policy.inherit(program.service_s, parent_ends_s)

    def _promote(self, call: Call, now: float) -> LevelChange:
        old = call.level
        self.shares.queue(call.tenant).promote(call)  # Alg. 1, line 27
        call.reset_ratio(now)  # Alg. 1, line 29
        call.promotions += 1
        self.starvation.forget(call)
        return LevelChange(call_id=call.call_id, old=old, new=1, reason=ChangeReason.PROMOTION)

    def _review(self, call: Call, program: Program, now: float) -> None:
        """Update the deadlines, and the key or the sizes, after a call's event has changed its program."""
        if self.policy.promotes:
            self.starvation.review(program, now)
        if self.policy.boosts:
            self._mark_moved(program, call.tenant, call)
        else:
            self._resize(program, call)

    def _resize(self, program: Program, but: Call | None = None) -> None:
        """Have the next tick size the calls of a program again, all but one, if the policy sizes programs."""
        for sibling in map(self._calls.get, program.active_calls) if self.policy.sizes_programs else ():
            # Some may run on another machine over the same table.
            is_sized = sibling is not None and sibling.is_admitted and sibling.level > 1
            if sibling is not None and is_sized and sibling is not but:
                self.quanta.add(sibling)

    def _mark_moved(self, program: Program, tenant: str, but: Call | None = None) -> None:
        """Have the next tick move the queued calls of a program, if they are not in its present place.

        They are if `but`, which has just arrived, is the first of them.
        """
        first = self.shares.first_of(tenant, program.program_id)
        if first is None or first is but or first.group is None:
            return
        if first.group.place != self.places.of(program):
            self.quanta.add(first)


def _update(program: Program, arrival: Arrival, now: float) -> None:
    """Add what the caller knows of a call's program."""
    if arrival.expected_s is not None:
        program.expected_s = arrival.expected_s
    if arrival.age_s is not None:
        program.created_s = min(program.created_s, now - arrival.age_s)
    program.is_identified = arrival.is_identified
    program.hints = arrival.hints
