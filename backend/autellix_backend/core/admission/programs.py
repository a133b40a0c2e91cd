"""The contexts of the programs on one engine: active ones, waiting ones, and leaving ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from autellix_backend.core.admission.contexts import ProgramContexts
from autellix_backend.core.admission.states import TRANSITIONS, Move, State
from autellix_backend.core.call import Call
from autellix_backend.core.errors import IllegalMoveError
from autellix_backend.core.place import NO_BOOSTS, Boosts, Place
from autellix_backend.core.priority import Priority
from autellix_backend.core.queues.classed import ClassedOrder
from autellix_backend.core.table import Program


@dataclass(slots=True, eq=False, kw_only=True)
class ProgramContext:
    """The context of one program on this engine."""

    program: Program
    tenant: str
    weight: float
    number: int
    """The order of its first call, which decides between equal keys."""
    place: Place
    """Its place by the policy."""
    boosts: Boosts
    """The present boosts of classes of work."""
    holding: Mapping[str, Mapping[str, Call]]
    """The calls that hold KV memory, by program, of active and inactive ones."""
    calls: dict[str, Call] = field(default_factory=dict)
    """Its active calls."""
    contexts: ProgramContexts
    prefix: Hashable = None
    prefix_tokens: int = 0
    """The tokens of its prefix."""
    prefix_kv_tokens: int = 0
    """The KV memory that they fill."""
    own_tokens: int = 0
    """The KV memory that it needs beside its prefix."""
    state: State = State.GONE
    return_s: float | None = None
    """The time (s) after its last call at which its client expects the next one; None if it states none."""
    retain_s: float | None = None
    """The longest time (s) for which its client wants its context kept after the last call."""
    since_s: float = 0.0
    """When its last call left, or while inactive, since when it has been waiting."""

    @property
    def is_active(self) -> bool:
        """Whether its contexts have room in KV memory."""
        return self.state.is_active

    @property
    def is_parked(self) -> bool:
        """Whether it is inactive, and host memory keeps its context."""
        return self.state.is_parked

    def after(self, move: Move) -> State:
        """Return the state after a move.

        Raises:
            IllegalMoveError: a program in its state cannot move so.
        """
        try:
            return TRANSITIONS[move][self.state]
        except KeyError:
            story = f"{len(self.calls)} calls, {self.own_tokens} tokens, since {self.since_s:.3f} s"
            which = f"program {self.program.program_id!r}"
            raise IllegalMoveError(which, move.value, self.state.name.lower(), story) from None

    @property
    def needed_tokens(self) -> int:
        """The KV memory that it needs, its prefix included."""
        return self.own_tokens + self.prefix_kv_tokens

    @property
    def length(self) -> int:
        """The tokens of its contexts beside its prefix, of which they fill whole blocks."""
        return self.contexts.length(self.prefix_tokens)

    @property
    def key(self) -> float:
        """Its present key."""
        return self.place.base + self.boosts.of(self.place.work_class)

    @property
    def rank(self) -> tuple[float, int]:
        """Its rank in the order of activation; lower goes first."""
        return (self.key, self.number)

    @property
    def gives_way(self) -> bool:
        """Whether it makes room for other programs of its tenant."""
        return self.program.hints.priority is Priority.BATCH

    def overdue_s(self, now: float) -> float:
        """Return how long it has waited beyond the time by which its priority lets others go first."""
        return now - self.since_s + min(0.0, self.program.hints.priority.head_start_s)

    @property
    def is_live(self) -> bool:
        """Whether a call of it runs or waits for a slot."""
        # In a loop, as a generator takes longer than the few calls.
        for call in self.calls.values():  # noqa: SIM110
            if not call.is_paused:
                return True
        return False

    @property
    def is_paused(self) -> bool:
        """Whether its calls only wait for their clients: they hold their memory, active or not."""
        return bool(self.calls) and not self.is_live

    def holding_calls(self) -> Collection[str]:
        """Return the ids of its calls that hold KV memory."""
        return self.holding.get(self.program.program_id, ())

    def measure_holding(self, tokens_of: Callable[[str], int]) -> bool:
        """Set the present contexts of its calls that hold KV memory; return whether it has any."""
        holding = self.holding_calls()
        for call_id in holding:
            self.contexts.resize(call_id, tokens_of(call_id))
        return bool(holding)


class ContextSet:
    """Some programs and the memory (tokens) of their contexts, shared prefixes counted once."""

    def __init__(self) -> None:
        self.contexts: dict[str, ProgramContext] = {}
        self.tokens = 0
        self._prefixes: dict[Hashable, list[int]] = {}
        """Prefixes by id: the programs that have one, and its tokens."""
        self.tenant_tokens: dict[str, int] = {}
        """The memory of each tenant's programs without shared prefixes; a tenant without any is absent."""

    def add(self, context: ProgramContext) -> None:
        """Add a program that is not in the set."""
        self.tokens += self.added_tokens(context)
        if context.prefix is not None:
            self._prefixes.setdefault(context.prefix, [0, context.prefix_kv_tokens])[0] += 1
        self._count(context, context.own_tokens)
        self.contexts[context.program.program_id] = context

    def remove(self, context: ProgramContext) -> None:
        """Remove a program of the set."""
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
        """Set the own tokens of a program of the set."""
        added = own_tokens - context.own_tokens
        context.own_tokens = own_tokens
        self.tokens += added
        self._count(context, added)

    def added_tokens(self, context: ProgramContext) -> int:
        """Return the memory that the program would add."""
        is_new = context.prefix is not None and context.prefix not in self._prefixes
        return context.own_tokens + (context.prefix_kv_tokens if is_new else 0)

    def added_by(self, contexts: Iterable[ProgramContext]) -> int:
        """Return the memory that several programs would add together."""
        contexts = list(contexts)
        prefixes = {
            context.prefix: context.prefix_kv_tokens
            for context in contexts
            if context.prefix not in self._prefixes
        }
        prefixes.pop(None, None)
        return sum(context.own_tokens for context in contexts) + sum(prefixes.values())

    @property
    def is_live(self) -> bool:
        """Whether a program of the set has a call that runs or waits for a slot."""
        return any(context.is_live for context in self.contexts.values())

    def has_unpaused(self, count: int) -> bool:
        """Return whether at least this many programs of the set do not only wait for their clients."""
        unpaused = (context for context in self.contexts.values() if not context.is_paused)
        return next(islice(unpaused, count - 1, None), None) is not None

    def _count(self, context: ProgramContext, tokens: int) -> None:
        self.tenant_tokens[context.tenant] = self.tenant_tokens.get(context.tenant, 0) + tokens
        if not self.tenant_tokens[context.tenant]:
            del self.tenant_tokens[context.tenant]

    def check(self) -> None:
        """Assert the invariants."""
        contexts = self.contexts.values()
        prefixes = {context.prefix for context in contexts if context.prefix is not None}
        assert self._prefixes.keys() == prefixes
        own_tokens = sum(context.own_tokens for context in contexts)
        assert self.tokens == own_tokens + sum(tokens for _, tokens in self._prefixes.values())
        assert sum(self.tenant_tokens.values()) == own_tokens


class TenantOrders:
    """Programs by tenant, those of each in order of activation."""

    def __init__(self, boosts: Boosts) -> None:
        self._boosts = boosts
        self._orders: dict[str, ClassedOrder[ProgramContext]] = {}
        self._heads: dict[str, ProgramContext] = {}
        """The first program of each tenant whose order has not changed since somebody looked."""
        self._epoch = boosts.epoch
        self._boosted = boosts.tenants
        """The tenants with a boost when somebody looked last."""

    def add(self, context: ProgramContext) -> None:
        """Add a program."""
        order = self._orders.get(context.tenant)
        if order is None:
            order = self._orders[context.tenant] = ClassedOrder(self._boosts)
        order.add(context.place, context.number, context)
        self._heads.pop(context.tenant, None)

    def remove(self, context: ProgramContext) -> None:
        """Remove a program."""
        order = self._orders[context.tenant]
        order.remove(context.place, context.number)
        self._heads.pop(context.tenant, None)
        if not order:
            del self._orders[context.tenant]

    def move(self, context: ProgramContext, place: Place) -> None:
        """Give a program another place."""
        if place != context.place:
            self.remove(context)
            context.place = place
            self.add(context)

    def heads(self) -> Collection[ProgramContext]:
        """Return the first program of each tenant."""
        heads, boosts = self._heads, self._boosts
        if self._epoch != boosts.epoch:
            # The boosts of the other tenants are zero, as they were.
            for tenant in (*self._boosted, *boosts.tenants):
                heads.pop(tenant, None)
            self._epoch = boosts.epoch
        if len(heads) < len(self._orders):
            self._boosted = boosts.tenants
            missing = [tenant for tenant in self._orders if tenant not in heads]
            heads.update((tenant, self._orders[tenant].first()) for tenant in missing)
        return heads.values()

    def tenants(self) -> Collection[str]:
        """Return the tenants with a program."""
        return self._orders.keys()

    def walk(self, tenant: str) -> Iterator[ProgramContext]:
        """Walk a tenant's programs in their present order; some may be removed meanwhile."""
        return iter(self._orders[tenant])

    def worst_first(self, tenant: str) -> Iterator[ProgramContext]:
        """Walk a tenant's programs from the last to the first, as `walk` does."""
        return self._orders[tenant].backwards()

    def check(self, contexts: Collection[ProgramContext]) -> None:
        """Assert the invariants, and that these are the programs."""
        for tenant, order in self._orders.items():
            assert order, tenant
            order.check()
            assert {*order} == {context for context in contexts if context.tenant == tenant}
        assert sum(map(len, self._orders.values())) == len(contexts)
        assert self._heads.keys() <= self._orders.keys()
        assert {*self.heads()} == {order.first() for order in self._orders.values()}


class InactivePrograms:
    """The programs that wait, in order of waiting and by tenant in order of activation; all have calls."""

    def __init__(self, boosts: Boosts = NO_BOOSTS) -> None:
        self.contexts: dict[str, ProgramContext] = {}
        """Inactive programs by id, the longest-waiting first."""
        self.orders = TenantOrders(boosts)
        self._sizes: list[int] = []
        """Their own tokens, the least first."""

    def __len__(self) -> int:
        return len(self.contexts)

    def add(self, context: ProgramContext) -> None:
        """Add a program, which waits from now on."""
        self.contexts[context.program.program_id] = context
        self.orders.add(context)
        insort(self._sizes, context.own_tokens)

    def remove(self, context: ProgramContext) -> None:
        """Remove a program."""
        del self.contexts[context.program.program_id]
        self.orders.remove(context)
        del self._sizes[bisect_left(self._sizes, context.own_tokens)]

    def resize(self, context: ProgramContext, own_tokens: int) -> None:
        """Set the own tokens of a program that waits."""
        del self._sizes[bisect_left(self._sizes, context.own_tokens)]
        context.own_tokens = own_tokens
        insort(self._sizes, own_tokens)

    @property
    def least_tokens(self) -> int:
        """The least KV memory that a program that waits needs beside its prefix."""
        return self._sizes[0]

    def longest(self, now: float) -> dict[str, ProgramContext]:
        """Return the program of each tenant that is overdue for longest, the first of several."""
        found: dict[str, ProgramContext] = {}
        for context in self.contexts.values():
            best = found.get(context.tenant)
            # Behind the first of a tenant, none of the same priority is overdue for longer.
            if best is not None and context.since_s > best.since_s and not best.gives_way:
                continue
            if best is None or (-context.overdue_s(now), context.number) < (
                -best.overdue_s(now),
                best.number,
            ):
                found[context.tenant] = context
        return found

    def places(self) -> dict[str, int]:
        """Return the place of each program in the order of keys, from 1."""
        ranked = sorted(self.contexts.values(), key=attrgetter("rank"))
        return {context.program.program_id: place for place, context in enumerate(ranked, start=1)}

    def check(self) -> None:
        """Assert the invariants."""
        waiting = list(self.contexts.values())
        assert [context.since_s for context in waiting] == sorted(context.since_s for context in waiting)
        for program_id, context in self.contexts.items():
            assert context.program.program_id == program_id, program_id
            assert context.calls, program_id
        assert self._sizes == sorted(context.own_tokens for context in waiting)
        self.orders.check(waiting)


class LeavingPrograms:
    """Inactive programs with calls that hold KV memory, which is free only once these end."""

    def __init__(self) -> None:
        self.tokens = 0
        """The KV memory of all of them."""
        self._tokens: dict[ProgramContext, int] = {}

    @property
    def least_beside(self) -> int:
        """The least memory that a waiting program finds taken: its own calls do not bar it."""
        return self.tokens - max(self._tokens.values(), default=0)

    def tokens_beside(self, context: ProgramContext) -> int:
        """Return the memory that all but this program still hold."""
        return self.tokens - self._tokens.get(context, 0)

    def add(self, context: ProgramContext) -> None:
        """Add a program that has become inactive, if calls of it hold memory."""
        if holding := context.holding_calls():
            tokens = context.contexts.tokens_of(holding, context.prefix_tokens)
            self._tokens[context] = tokens
            self.tokens += tokens

    def renew(self, context: ProgramContext) -> None:
        """Count what an inactive program holds again; it may be absent."""
        self.discard(context)
        self.add(context)

    def discard(self, context: ProgramContext) -> None:
        """Remove a program that is active again; it may be absent."""
        self.tokens -= self._tokens.pop(context, 0)

    def measure(self, tokens_of: Callable[[str], int]) -> None:
        """Measure what calls hold again, and drop the programs that hold nothing."""
        programs, self._tokens, self.tokens = self._tokens, {}, 0
        for context in programs:
            if not context.is_active and context.measure_holding(tokens_of):
                self.add(context)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.tokens == sum(self._tokens.values())
        assert not any(context.is_active for context in self._tokens)
