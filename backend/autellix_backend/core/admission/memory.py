"""The KV memory of one engine, in tokens: which programs hold it, and which wait for room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from autellix_backend.core.admission.contexts import KvFill
from autellix_backend.core.admission.programs import (
    ActiveSet,
    InactivePrograms,
    LeavingPrograms,
    ProgramContext,
)
from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call


class EngineMemory:
    """Programs that are active, those that wait, and those that became inactive while calls were running."""

    def __init__(self, capacity_tokens: float, fill: KvFill) -> None:
        self.fill = fill
        """How contexts fill it."""
        self.capacity_tokens = capacity_tokens
        """KV tokens that the contexts of active programs may fill."""
        self.active = ActiveSet()
        self.inactive = InactivePrograms()
        self.leaving = LeavingPrograms()
        self.freed_tokens = 0
        """Tokens of programs that are active no more, and so of blocks that should be evicted first."""
        self._changed: dict[Call, bool] = {}
        """Calls that the present review admitted or withdrew, and whether they were admitted before."""

    def find(self, program_id: str) -> ProgramContext | None:
        """Return the context of a program, None if it is unknown."""
        return self.active.contexts.get(program_id) or self.inactive.contexts.get(program_id)

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

    def has_room(self, context: ProgramContext, beside: int = 0) -> bool:
        """Return whether a program fits beside the active ones and `beside` tokens more."""
        return self.active.tokens + self.active.added_tokens(context) + beside <= self.capacity_tokens

    def fits(self, context: ProgramContext) -> bool:
        """Whether a program that waits may be activated: it fits, or it would be the only one."""
        if not self.active.contexts:
            return True
        leaving = self.leaving.tokens_beside(context) if self.leaving.tokens else 0
        # Most programs are refused without a look at their prefix.
        is_too_large = self.active.tokens + context.own_tokens + leaving > self.capacity_tokens
        return not is_too_large and self.has_room(context, beside=leaving)

    def tenant_share(self, context: ProgramContext) -> float:
        """Return the active context of the program's tenant, by the tenant's weight."""
        return self.active.tenant_tokens(context.tenant) / context.weight

    def measure(self, tokens_of: Callable[[str], int]) -> None:
        """Measure the calls of active programs that hold memory: running ones grow with every step."""
        for context in self.active.contexts.values():
            if context.measure_holding(tokens_of):
                self.resize(context)

    def resize(self, context: ProgramContext) -> None:
        """Count the present contexts of a program."""
        own_tokens = context.contexts.tokens(context.prefix_tokens)
        if own_tokens != context.own_tokens:
            (self.active if context.is_active else self.inactive).resize(context, own_tokens)

    def set_prefix(self, context: ProgramContext, needs: Context) -> None:
        """Give a program the prefix of its latest call."""
        if context.is_active:
            self.active.remove(context)
        context.prefix, context.prefix_tokens = needs.prefix, needs.prefix_tokens
        context.prefix_kv_tokens = self.fill(needs.prefix_tokens, 0)
        if context.is_active:
            self.active.add(context)

    def rekey(self, context: ProgramContext, key: float) -> None:
        """Give a program another key, and its place in the order of activation."""
        if context.is_active:
            context.key = key
        elif key != context.key:
            self.inactive.move(context, key)

    def activate(self, context: ProgramContext) -> None:
        """Activate a program that waits, and admit its calls."""
        self.inactive.remove(context)
        context.is_active = True
        self.active.add(context)
        self.leaving.discard(context)
        self._admit(context, is_admitted=True)

    def deactivate(self, context: ProgramContext, now: float) -> None:
        """Let an active program wait again, with those of its calls that do not run."""
        self.drop(context)
        if context.calls:
            self.inactive.add(context, now)
            self.leaving.add(context)
            self._admit(context, is_admitted=False)

    def drop(self, context: ProgramContext) -> None:
        """Free the memory of an active program."""
        self.active.remove(context)
        context.is_active = False
        self.freed_tokens += context.own_tokens

    def take_changed(self) -> list[Call]:
        """Return the calls that were admitted or withdrawn since the last time."""
        changed, self._changed = self._changed, {}
        return [call for call, was_admitted in changed.items() if call.is_admitted != was_admitted]

    def check(self) -> None:
        """Assert the invariants between two reviews."""
        self.active.check()
        self.inactive.check()
        self.leaving.check()
        for context in chain(self.active.contexts.values(), self.inactive.contexts.values()):
            context.contexts.check()
        assert not self._changed
        assert not self.active.contexts.keys() & self.inactive.contexts.keys()

    def _admit(self, context: ProgramContext, *, is_admitted: bool) -> None:
        for call in context.calls.values():
            is_kept = call.is_running or (call.is_pinned and not is_admitted)
            if not is_kept and call.is_admitted != is_admitted:
                self._changed.setdefault(call, call.is_admitted)
                call.is_admitted = is_admitted
