"""The contexts of programs on one engine: those that are active together, and those that wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from autellix_backend.core.call import Call
from autellix_backend.core.contexts import ProgramContexts
from autellix_backend.core.table import Program

__all__ = ["ActiveSet", "InactivePrograms", "ProgramContext"]


@dataclass(slots=True, eq=False, kw_only=True)
class ProgramContext:
    """The context of one program on this engine."""

    program: Program
    tenant: str
    weight: float
    number: int
    """Of its appearance, which decides between equal keys."""
    key: float = 0.0
    calls: dict[str, Call] = field(default_factory=dict)
    """Its active calls."""
    contexts: ProgramContexts = field(default_factory=ProgramContexts)
    prefix: Hashable = None
    prefix_tokens: int = 0
    own_tokens: int = 0
    """What it needs beside its prefix."""
    is_active: bool = False
    since_s: float = 0.0
    """When its last call left, or while inactive, since when it has been waiting."""

    def measure(self) -> int:
        """Return what it needs beside its prefix."""
        return self.contexts.tokens(self.prefix_tokens)

    @property
    def rank(self) -> tuple[float, int]:
        """Its place in the order of activation; lower goes first."""
        return (self.key, self.number)


_Ranked = tuple[float, int, ProgramContext]


class ActiveSet:
    """The active programs and the KV memory (tokens) of their contexts, shared prefixes counted once."""

    def __init__(self) -> None:
        self.contexts: dict[str, ProgramContext] = {}
        self.tokens = 0
        self._prefixes: dict[Hashable, list[int]] = {}
        """By id: the programs that have it, and its tokens."""
        self._tenant_tokens: dict[str, int] = {}

    def add(self, context: ProgramContext) -> None:
        """Add a program that is not active."""
        self.tokens += self.added_tokens(context)
        if context.prefix is not None:
            self._prefixes.setdefault(context.prefix, [0, context.prefix_tokens])[0] += 1
        self._count(context, context.own_tokens)
        self.contexts[context.program.program_id] = context

    def remove(self, context: ProgramContext) -> None:
        """Remove an active program."""
        del self.contexts[context.program.program_id]
        self._count(context, -context.own_tokens)
        self.tokens -= context.own_tokens
        if context.prefix is not None:
            prefix = self._prefixes[context.prefix]
            prefix[0] -= 1
            if not prefix[0]:
                self.tokens -= prefix[1]
                del self._prefixes[context.prefix]

    def resize(self, context: ProgramContext, own_tokens: int) -> None:
        """Count another number of tokens for an active program from now on."""
        added = own_tokens - context.own_tokens
        self.tokens += added
        self._count(context, added)

    def added_tokens(self, context: ProgramContext) -> int:
        """Return the KV memory that the program would add."""
        is_new = context.prefix is not None and context.prefix not in self._prefixes
        return context.own_tokens + (context.prefix_tokens if is_new else 0)

    def added_by(self, contexts: Iterable[ProgramContext]) -> int:
        """Return the KV memory that several programs would add together."""
        contexts = list(contexts)
        prefixes = {own.prefix: own.prefix_tokens for own in contexts if own.prefix not in self._prefixes}
        prefixes.pop(None, None)
        return sum(own.own_tokens for own in contexts) + sum(prefixes.values())

    def tenant_tokens(self, tenant: str) -> int:
        """Return the KV memory of a tenant's programs without shared prefixes."""
        return self._tenant_tokens.get(tenant, 0)

    def _count(self, context: ProgramContext, tokens: int) -> None:
        self._tenant_tokens[context.tenant] = self._tenant_tokens.get(context.tenant, 0) + tokens
        if not self._tenant_tokens[context.tenant]:
            del self._tenant_tokens[context.tenant]

    def check(self) -> None:
        """Assert the invariants."""
        contexts = self.contexts.values()
        prefixes = {context.prefix for context in contexts if context.prefix is not None}
        assert self._prefixes.keys() == prefixes
        own_tokens = sum(context.own_tokens for context in contexts)
        assert self.tokens == own_tokens + sum(tokens for _, tokens in self._prefixes.values())
        assert sum(self._tenant_tokens.values()) == own_tokens
        assert all(context.is_active for context in contexts)


class InactivePrograms:
    """The programs that wait, in order of waiting and by tenant in order of activation; all have calls."""

    def __init__(self) -> None:
        self.contexts: dict[str, ProgramContext] = {}
        """By id, the one that has waited longest first."""
        self._orders: dict[str, list[_Ranked]] = {}
        self._sizes: list[int] = []
        """Their own tokens, the least first."""

    def __len__(self) -> int:
        return len(self.contexts)

    def add(self, context: ProgramContext, now: float) -> None:
        """Add a program, which waits from now on."""
        context.since_s = now
        self.contexts[context.program.program_id] = context
        insort(self._orders.setdefault(context.tenant, []), (*context.rank, context))
        insort(self._sizes, context.own_tokens)

    def remove(self, context: ProgramContext) -> None:
        """Remove a program."""
        del self.contexts[context.program.program_id]
        order = self._orders[context.tenant]
        del order[bisect_left(order, context.rank)]
        if not order:
            del self._orders[context.tenant]
        del self._sizes[bisect_left(self._sizes, context.own_tokens)]

    def resize(self, context: ProgramContext, own_tokens: int) -> None:
        """Count another number of tokens for a program that waits, from now on."""
        del self._sizes[bisect_left(self._sizes, context.own_tokens)]
        insort(self._sizes, own_tokens)

    def move(self, context: ProgramContext, key: float) -> None:
        """Change the key of a program."""
        order = self._orders[context.tenant]
        del order[bisect_left(order, context.rank)]
        context.key = key
        insort(order, (*context.rank, context))

    @property
    def least_tokens(self) -> int:
        """The least KV memory that a program that waits needs beside its prefix."""
        return self._sizes[0]

    def heads(self) -> list[ProgramContext]:
        """Return the first program of each tenant."""
        return [order[0][-1] for order in self._orders.values()]

    def walk(self, tenant: str) -> Iterator[ProgramContext]:
        """Walk a tenant's programs in their present order; some may be removed meanwhile."""
        return map(itemgetter(-1), list(self._orders[tenant]))

    def ranked(self) -> list[ProgramContext]:
        """Return all programs in the order of their keys."""
        return sorted(self.contexts.values(), key=attrgetter("rank"))

    def check(self) -> None:
        """Assert the invariants."""
        waiting = list(self.contexts.values())
        assert [own.since_s for own in waiting] == sorted(own.since_s for own in waiting)
        for program_id, own in self.contexts.items():
            assert own.program.program_id == program_id, program_id
            assert own.calls, program_id
            assert not own.is_active, program_id
        assert sum(map(len, self._orders.values())) == len(waiting)
        assert self._sizes == sorted(own.own_tokens for own in waiting)
        for tenant, order in self._orders.items():
            assert order, tenant
            assert order == sorted((*own.rank, own) for own in waiting if own.tenant == tenant)
