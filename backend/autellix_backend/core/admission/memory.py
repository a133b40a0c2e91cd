"""The KV memory of one engine, in tokens: which programs hold it, and which wait for room.

With host memory for KV blocks there are two tiers. The engine stores every block there as soon as it is
computed, so host memory has the contexts of active programs too. What else fits is for parked programs: they
are inactive, and return by a load in the place of a prefill. A program is parked when it becomes inactive and
given up when the contexts of active and parked programs together outgrow host memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from autellix_backend.core.admission.contexts import KvFill
from autellix_backend.core.admission.programs import (
    ContextSet,
    InactivePrograms,
    LeavingPrograms,
    ProgramContext,
    TenantOrders,
)
from autellix_backend.core.admission.states import Move, State
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.place import NO_BOOSTS, Boosts, Place

HOST_SHARE = 0.8
"""The share of host memory that the contexts of active and parked programs may fill before no other program
is activated: the rest is for what they grow by. Simulated, 0.7 to 0.9 serve about as well."""
BATCH_SHARE = 0.9
"""The share of the capacity up to which programs of priority `batch` are activated: the rest is free at once
for the others."""


class EngineMemory:
    """Programs that are active, parked or waiting, and those that became inactive while calls ran."""

    def __init__(
        self,
        capacity_tokens: float,
        fill: KvFill,
        holding: Mapping[str, Mapping[str, Call]],
        boosts: Boosts = NO_BOOSTS,
    ) -> None:
        self.fill = fill
        """How contexts fill it."""
        self.capacity_tokens = capacity_tokens
        """KV tokens that the contexts of active programs may fill."""
        self.host_tokens = 0.0
        """The tokens that fit into host memory; 0 without any."""
        self.programs: dict[str, ProgramContext] = {}
        """All programs that are not gone; the sets below are indexes by state."""
        self.active = ContextSet()
        self.active_orders = TenantOrders(boosts)
        """The active programs, by tenant."""
        self.parked = ContextSet()
        """Inactive programs whose contexts host memory keeps, with and without calls."""
        self.inactive = InactivePrograms(boosts)
        self.leaving = LeavingPrograms()
        self._holding = holding
        """The calls that hold KV memory, by program."""
        self.has_batch = False
        """Whether a program of priority `batch` has come so far."""
        self.freed_tokens = 0
        """Tokens of programs that are active no more, and so of blocks that should be evicted first."""
        self._changed: dict[Call, bool] = {}
        """Calls that the present review admitted or withdrew, and whether they were admitted before."""
        self._stored: dict[str, bool] = {}
        """Programs whose contexts host memory should keep from now on, or need not keep any more."""

    def find(self, program_id: str) -> ProgramContext | None:
        """Return the context of a program, None if it is unknown."""
        return self.programs.get(program_id)

    @property
    def is_over(self) -> bool:
        """Whether the active programs have outgrown the capacity."""
        return self.active.tokens > self.capacity_tokens

    @property
    def is_full(self) -> bool:
        """Whether not even the smallest program that waits could fit."""
        if not self.active.contexts:
            return False
        least = self.inactive.least_tokens + self.leaving.least_beside
        return self.active.tokens + least > self.capacity_tokens

    @property
    def own_room_tokens(self) -> float:
        """The most that a program which fits may need beside its prefix."""
        if not self.active.contexts:
            return math.inf
        return self.capacity_tokens - self.active.tokens - self.leaving.least_beside

    def lack_tokens(self, context: ProgramContext, beside: int = 0) -> float:
        """Return what a program lacks beside the active ones and `beside` tokens more; below 0 to spare."""
        return self.active.tokens + self.active.added_tokens(context) + beside - self._limit_tokens(context)

    def has_room(self, context: ProgramContext, beside: int = 0) -> bool:
        """Return whether a program fits beside the active ones and `beside` tokens more."""
        return self.lack_tokens(context, beside) <= 0

    def _limit_tokens(self, context: ProgramContext) -> float:
        """Return what the contexts of active programs may fill once this program is active."""
        return self.capacity_tokens * (BATCH_SHARE if context.gives_way else 1.0)

    def fits(self, context: ProgramContext) -> bool:
        """Whether a program that waits may be activated: it fits, or it would be the only one."""
        if not self.has_host_room(context):
            return False
        if not self.active.contexts:
            return True
        leaving = self.leaving.tokens_beside(context) if self.leaving.tokens else 0
        # Most programs are refused without a look at their prefix.
        is_too_large = self.active.tokens + context.own_tokens + leaving > self._limit_tokens(context)
        return not is_too_large and self.has_room(context, beside=leaving)

    @property
    def keeps_parked(self) -> bool:
        """Whether host memory has room for the contexts of all active and parked programs."""
        return self.active.tokens + self.parked.tokens <= self.host_tokens

    @property
    def room_tokens(self) -> float:
        """The tokens that active and parked programs may fill before another has to wait."""
        return max(self.capacity_tokens, HOST_SHARE * self.host_tokens)

    def has_host_room(self, context: ProgramContext) -> bool:
        """Whether a program could be active without driving parked ones out of host memory."""
        if context.is_parked or not self.parked.contexts:
            return True
        tokens = self.active.tokens + self.parked.tokens + self.parked.added_tokens(context)
        return tokens <= HOST_SHARE * self.host_tokens

    def make_host_room(self, context: ProgramContext) -> None:
        """Give up parked programs until a program could be active beside the others."""
        while not self.has_host_room(context):
            self.give_up(self.last_parked())

    def trim_parked(self) -> None:
        """Give up parked programs that host memory cannot keep beside the others."""
        while self.parked.contexts and not self.keeps_parked:
            self.give_up(self.last_parked())

    def last_parked(self) -> ProgramContext:
        """Return the parked program to give up first: the worst key of the tenant with the most by weight.

        Of tenants with equal shares it is the last to have parked one: priorities hold within a tenant.
        """
        tokens = self.parked.tenant_tokens
        last = {each.tenant: number for number, each in enumerate(self.parked.contexts.values())}
        return max(
            self.parked.contexts.values(),
            key=lambda each: (tokens.get(each.tenant, 0) / each.weight, last[each.tenant], *each.rank),
        )

    def tenant_share(self, context: ProgramContext) -> float:
        """Return the active context of the program's tenant, by the tenant's weight."""
        return self.active.tenant_tokens.get(context.tenant, 0) / context.weight

    def by_share(self, contexts: Iterable[ProgramContext]) -> list[tuple[float, int, ProgramContext]]:
        """Return programs behind the share of their tenant and their number, by which they are activated."""
        tokens = self.active.tenant_tokens
        return [(tokens.get(each.tenant, 0) / each.weight, each.number, each) for each in contexts]

    def measure(self, tokens_of: Callable[[str], int]) -> None:
        """Measure the calls of active programs that hold memory: running ones grow with every step."""
        for program_id in self._holding:
            context = self.active.contexts.get(program_id)
            if context is not None and context.measure_holding(tokens_of):
                self.resize(context)

    def resize(self, context: ProgramContext) -> None:
        """Count the present contexts of a program."""
        own_tokens = context.contexts.tokens(context.prefix_tokens)
        if own_tokens == context.own_tokens:
            return
        if context.is_active:
            self.active.resize(context, own_tokens)
            return
        if context.is_parked:
            self.parked.remove(context)
        self.inactive.resize(context, own_tokens)
        if context.is_parked:
            self.parked.add(context)

    def set_prefix(self, context: ProgramContext, needs: Context) -> None:
        """Give a program the prefix of its latest call."""
        its_set = self.active if context.is_active else self.parked if context.is_parked else None
        if its_set is not None:
            its_set.remove(context)
        context.prefix, context.prefix_tokens = needs.prefix, needs.prefix_tokens
        context.prefix_kv_tokens = self.fill(needs.prefix_tokens, 0)
        if its_set is not None:
            its_set.add(context)

    def move(self, context: ProgramContext, place: Place) -> None:
        """Give a program another place in the order of activation."""
        if context.is_active:
            self.active_orders.move(context, place)
        elif context.state.waits:
            self.inactive.orders.move(context, place)
        else:
            context.place = place

    def arrive(self, context: ProgramContext, now: float) -> None:
        """Let an inactive program wait, for which the first of its calls comes now."""
        context.since_s = now
        self._move(context, Move.ARRIVE)

    def activate(self, context: ProgramContext) -> None:
        """Activate a program that waits, and admit its calls."""
        self._move(context, Move.ACTIVATE)
        self._note_stored(context, is_kept=True)
        self.leaving.discard(context)
        self._admit(context, is_admitted=True)

    def deactivate(self, context: ProgramContext, now: float) -> None:
        """Free the memory of an active program, and park it if there is host memory.

        It waits again, with those of its calls that do not run.
        """
        self.freed_tokens += context.own_tokens
        if context.calls:
            context.since_s = now
        self._move(context, Move.DEACTIVATE if context.calls else Move.DROP)
        if self.host_tokens:
            self._move(context, Move.PARK)
        self.leaving.add(context)
        self._admit(context, is_admitted=False)

    def give_up(self, context: ProgramContext) -> None:
        """Let a parked program lose its context."""
        self._move(context, Move.GIVE_UP)
        self._note_stored(context, is_kept=False)

    def leave(self, context: ProgramContext, now: float) -> None:
        """Note that the last call of a program has left; what is inactive frees its memory."""
        context.since_s = now
        if not context.is_active:
            self._move(context, Move.LEAVE)
            self.leaving.discard(context)
            self.freed_tokens += context.own_tokens

    def end(self, context: ProgramContext) -> None:
        """Free all memory of a program that has no call and will have none."""
        if context.is_active:
            self.freed_tokens += context.own_tokens
            self._move(context, Move.DROP)
            self._note_stored(context, is_kept=False)
        else:
            self.give_up(context)

    def _move(self, context: ProgramContext, move: Move) -> None:
        """Change a program's state, and with it the sets that it is in."""
        before, after = context.state, context.after(move)
        context.state = after
        if before.is_active:
            self.active.remove(context)
            self.active_orders.remove(context)
        if before.is_parked and not after.is_parked:
            self.parked.remove(context)
        if before.waits and not after.waits:
            self.inactive.remove(context)
        if after.is_active:
            self.active.add(context)
            self.active_orders.add(context)
        if after.is_parked and not before.is_parked:
            self.parked.add(context)
        if after.waits and not before.waits:
            self.inactive.add(context)
        if after is State.GONE:
            del self.programs[context.program.program_id]
        else:
            self.programs[context.program.program_id] = context

    def _note_stored(self, context: ProgramContext, *, is_kept: bool) -> None:
        if self.host_tokens:
            self._stored[context.program.program_id] = is_kept

    def take_stored(self) -> dict[str, bool]:
        """Return whose contexts host memory should keep from now on, or need not, since the last time."""
        stored, self._stored = self._stored, {}
        return stored

    def take_changed(self) -> list[Call]:
        """Return the calls that were admitted or withdrawn since the last time."""
        changed, self._changed = self._changed, {}
        return [call for call, was_admitted in changed.items() if call.is_admitted != was_admitted]

    def check(self) -> None:
        """Assert the invariants between two reviews."""
        self.active.check()
        self.active_orders.check(self.active.contexts.values())
        self.parked.check()
        self.inactive.check()
        self.leaving.check()
        indexes = (self.active, self.inactive, self.parked)
        for program_id, context in self.programs.items():
            context.contexts.check()
            state = context.state
            held = tuple(each.contexts.get(program_id) is context for each in indexes)
            assert held == state.value == (state.is_active, state.waits, state.is_parked), program_id
            assert state is not State.GONE, program_id
            assert state.is_active or bool(context.calls) is state.waits, program_id
        assert all(each.contexts.keys() <= self.programs.keys() for each in indexes)
        assert not self._changed

    def _admit(self, context: ProgramContext, *, is_admitted: bool) -> None:
        for call in context.calls.values():
            is_kept = call.is_running or (call.is_pinned and not is_admitted)
            if not is_kept and call.is_admitted != is_admitted:
                self._changed.setdefault(call, call.is_admitted)
                call.is_admitted = is_admitted
