"""Admission by working set: programs run as long as their contexts fit into KV memory together.

A program is active or not, and calls of inactive programs wait. A program that is between two calls stays
active, because its next call needs its context again; if every program were admitted, each context would be
evicted before its program returns, and every call would prefill everything again. (Denning, "The Working Set
Model for Program Behavior", CACM 1968; programs in place of processes, KV blocks in place of pages.)

The contexts of the active programs, prefixes that several share counted once, may fill a share of KV memory.
While they exceed it, the program with the worst key becomes inactive; what fits is activated in the order of
keys, and smaller programs may pass one that does not fit, for a bounded time. One program is always active,
however large. Between tenants, the one with the least active context for its weight goes first.

`review.py` has the rules by which no program starves, `idle.py` those for programs between two calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter

from autellix_backend.core.admission.base import Admission, AdmissionInputs
from autellix_backend.core.admission.contexts import ProgramContexts
from autellix_backend.core.admission.costs import ContextCosts, HostLoads
from autellix_backend.core.admission.idle import IdleLimits
from autellix_backend.core.admission.memory import EngineMemory
from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.admission.review import MemoryReview
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.place import Place
from autellix_backend.core.table import Program

REVIEW_STEPS = 16
"""Steps between two measurements of the running contexts, which grow by a token in each step."""
KEEP_SHARE = 0.02
"""The share of KV memory that must have been freed before the order of eviction is put right again."""


class WorkingSetAdmission(Admission):
    """Decides which programs are active on one engine."""

    memory: EngineMemory

    def __init__(self, inputs: AdmissionInputs) -> None:
        """Admit programs to an empty engine."""
        config = inputs.config
        self.memory = EngineMemory(
            config.kv_share * inputs.kv_tokens, inputs.fill, inputs.holding, inputs.boosts
        )
        self._kv_tokens = inputs.kv_tokens
        self._costs = ContextCosts(inputs.token_cost, inputs.prefill)
        self.idle = IdleLimits(self.memory.capacity_tokens, config.idle_s, self._costs)
        self._review = MemoryReview(
            self.memory,
            self.idle,
            self._costs,
            inputs.statistics,
            # With decisions every N steps, as in the paper, an engine without work has no time of its own.
            waits_at_standstill=config.period_steps == 1,
        )
        self._place_of = inputs.place_of
        self._boosts = inputs.boosts
        self._holding = inputs.holding
        self._numbers = count()
        self._is_dirty = False
        """Whether a program has changed since the last review."""
        self._next_step = 0

    def spare_tokens(self, now: float) -> int:
        """Return the KV memory of programs without a call that would make way for any that waits."""
        return sum(
            context.own_tokens
            for contexts in (self.memory.active, self.memory.parked)
            for context, limit_s in self.idle.limits(contexts)
            if now - context.since_s > limit_s
        )

    @property
    def hold_s(self) -> float:
        """The time for which an idle program is kept whose gaps are unknown."""
        return self.idle.hold_s

    def is_active(self, program_id: str) -> bool:
        """Whether the program's calls may run."""
        return program_id in self.memory.active.contexts

    def is_due(self, step: int) -> bool:
        """Whether a program has changed, or contexts have grown for some steps."""
        return self._is_dirty or step >= self._next_step

    def steps_to_review(self, step: int) -> int:
        """Return the steps until contexts are measured again."""
        return 1 if self._is_dirty or self._has_freed else max(1, self._next_step - step)

    @property
    def _has_freed(self) -> bool:
        return self.memory.freed_tokens >= KEEP_SHARE * self.memory.capacity_tokens

    def use_host_memory(self, loads: HostLoads, tokens: float) -> None:
        """Park inactive programs in host memory, and keep idle ones active for less time."""
        self._costs.host_loads = loads
        self.memory.host_tokens = tokens
        # What outgrows the memory is loaded again, and not computed, so no reserve is worth its price.
        self.memory.capacity_tokens = self._kv_tokens

    def take_stored(self) -> Mapping[str, bool]:
        """Return the programs that became active, or that were given up."""
        return self.memory.take_stored()

    @property
    def wake_s(self) -> float:
        """The end of a standstill; inf where the engine has work."""
        return self._review.wake_s

    def arrive(self, call: Call, program: Program, needs: Context | None, now: float) -> None:
        """Note an arriving call, and set whether it is admitted."""
        memory, needs = self.memory, needs or Context(0)
        # From the table, which also knows programs that have lost their place here since.
        if len(program.active_calls) == 1 and program.last_completion_s is not None:
            self.idle.gaps.add(call.tenant, program.hints.class_name, now - program.last_completion_s)
        place = self._place_of(program)
        context = memory.find(program.program_id) or self._make_context(call, program, place)
        if not (context.calls or context.is_active):
            memory.arrive(context, now)
        # The table may have dropped the entry of the program's last call and made another one.
        context.program, context.weight = program, call.weight
        memory.has_batch |= context.gives_way
        memory.move(context, place)
        if needs.prefix is not None and needs.prefix != context.prefix:
            memory.set_prefix(context, needs)
        context.calls[call.call_id] = call
        context.contexts.add(call.call_id, needs.tokens, shared=needs.shared_tokens, follows=needs.follows)
        memory.resize(context)
        if len(memory.inactive) == len(context.calls) == 1 and not context.is_active and memory.fits(context):
            memory.activate(context)
        call.is_admitted = context.is_active or call.is_pinned
        if call.is_pinned and not context.is_active:
            memory.leaving.renew(context)
        self._is_dirty |= not context.is_active or memory.is_over

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Note that a call has left, and what it leaves in KV memory."""
        memory, context = self.memory, self.memory.find(call.program_id)
        assert context is not None, call.call_id
        del context.calls[call.call_id]
        context.contexts.leave(call.call_id, context_tokens)
        context.return_s, context.retain_s = call.hints.return_s, call.hints.retain_s
        memory.move(context, self._place_of(context.program))
        memory.resize(context)
        if not context.calls:
            memory.leave(context, now)
            if program.is_ended:
                self.forget(call.program_id)
        self._is_dirty |= bool(memory.inactive)

    def forget(self, program_id: str) -> None:
        """Free the memory of a program that has no call and will have none."""
        context = self.memory.find(program_id)
        if context is not None and not context.calls:
            self.memory.end(context)
            self._is_dirty |= bool(self.memory.inactive)

    def lose_contexts(self) -> None:
        """Free the memory of all idle programs, and forget what earlier calls have left."""
        memory = self.memory
        for context in list(memory.parked.contexts.values()):
            memory.give_up(context)
        for context in (*memory.active.contexts.values(), *memory.inactive.contexts.values()):
            context.contexts.forget_left()
            if not context.calls:
                memory.end(context)
        self._is_dirty |= bool(memory.inactive)

    def move(self, program_id: str) -> None:
        """Give a program its present place, if it is known."""
        context = self.memory.find(program_id)
        if context is not None:
            self.memory.move(context, self._place_of(context.program))

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:
        """Activate what fits and deactivate what does not; return the waiting calls that this concerns."""
        self._is_dirty = False
        if step >= self._next_step:
            self._next_step = step + REVIEW_STEPS
            self.memory.measure(tokens_of)
        self.memory.leaving.measure(tokens_of)
        self._review.run(now)
        # The engine stands still until then, so that its steps do not tell the time.
        self._is_dirty = self.wake_s < math.inf
        return self.memory.take_changed()

    def take_to_keep(self) -> list[str]:
        """Return the active programs without a call, longest idle first, once others have freed enough."""
        memory = self.memory
        if not self._has_freed:
            return []
        memory.freed_tokens = 0
        idle = [context for context in memory.active.contexts.values() if not context.calls]
        return [context.program.program_id for context in sorted(idle, key=attrgetter("since_s"))]

    def check(self) -> None:
        """Assert the invariants."""
        self.memory.check()

    def _make_context(self, call: Call, program: Program, place: Place) -> ProgramContext:
        return ProgramContext(
            program=program,
            tenant=call.tenant,
            weight=call.weight,
            number=next(self._numbers),
            place=place,
            boosts=self._boosts,
            holding=self._holding,
            contexts=ProgramContexts(self.memory.fill),
        )
