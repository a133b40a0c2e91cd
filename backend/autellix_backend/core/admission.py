"""Admission by working set: programs run as long as their contexts fit into KV memory together.

A program is active or not, and calls of inactive programs wait. A program that is between two calls stays
active, because its next call needs its context again; were all contexts admitted that ask, each would be
evicted before its program comes back, and every call would prefill everything anew. (Denning, "The Working
Set Model for Program Behavior", CACM 1968; programs in the place of processes, KV blocks in that of pages.)

The contexts of the active programs, prefixes that several share counted once, may fill a share of KV memory.
While they exceed it, the program with the worst key becomes inactive; what fits is activated in the order of
keys, and smaller programs may pass one that does not fit, for a bounded time. One program is always active,
however large. Between tenants, the one with the least active context for its weight goes first.

No program starves. Among those of one tenant, with R the mean response time of programs:

- Under `boost`, only programs that arrive within g * ln(1 / (1 - exp(-w / g))) seconds after a program go
  before it by their keys, g being the strength and w the seconds of the least work (see `core.boost`).
- Once a program has waited for PATIENCE times R, none with a larger key is activated before it.
- Once it has waited for STARVING times R, under any policy, none that has waited for less is.

Active programs stay so while they fit: one that waits needs memory that others leave, grow out of, or leave
idle for too long.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program

if TYPE_CHECKING:
    from autellix_backend.core.config import SchedulerConfig

__all__ = ["REVIEW_STEPS", "ProgramContext", "WorkingSetAdmission", "make_admission"]

REVIEW_STEPS = 16
"""Contexts grow by a token in each step: so often they are measured again."""
PATIENCE = 2.0
"""After so many mean response times an inactive program lets no other pass."""
STARVING = 8.0
"""After so many it goes first: by attained service alone it might never do so."""
MAX_PASSED = 64
"""The most programs that are passed over in one review, which bounds its cost."""
GAP_WINDOW, MIN_GAPS = 64, 8
"""Gaps between calls that are remembered of a class, and those needed before they count."""
GAP_QUANTILE = 0.95
MAX_CLASSES = 256
MAX_HOLDS = 4.0
"""Idle programs of classes with long gaps stay active for so many times the prefill of all memory."""
_NOTHING = Context(0)


@dataclass(slots=True)
class HeldCall:
    """An active call, and the KV memory (tokens) that it needs."""

    call: Call
    tokens: int
    shared_tokens: int


@dataclass(slots=True, eq=False, kw_only=True)
class ProgramContext:
    """The context of one program on this engine."""

    program: Program
    tenant: str
    weight: float
    number: int
    """Of its appearance, which decides between equal keys."""
    key: float = 0.0
    calls: dict[str, HeldCall] = field(default_factory=dict)
    last_tokens: int = 0
    """The context that its last call left."""
    prefix: Hashable = None
    prefix_tokens: int = 0
    own_tokens: int = 0
    """What it needs beside its prefix."""
    is_active: bool = False
    since_s: float = 0.0
    """When its last call left, or while inactive, since when it has been waiting."""

    def measure(self) -> int:
        """Return what it needs beside its prefix; contexts of simultaneous calls share their beginning."""
        if not self.calls:
            return max(0, self.last_tokens - self.prefix_tokens)
        longest = max(self.calls.values(), key=attrgetter("tokens"))
        rest = sum(
            max(0, held.tokens - max(held.shared_tokens, self.prefix_tokens))
            for held in self.calls.values()
            if held is not longest
        )
        return max(0, longest.tokens + rest - self.prefix_tokens)

    @property
    def rank(self) -> tuple[float, int]:
        """Its place in the order of activation; lower goes first."""
        return (self.key, self.number)


_Ranked = tuple[float, int, ProgramContext]
_Turn = tuple[float, float, int, ProgramContext]


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

    def __len__(self) -> int:
        return len(self.contexts)

    def add(self, context: ProgramContext, now: float) -> None:
        """Add a program, which waits from now on."""
        context.since_s = now
        self.contexts[context.program.program_id] = context
        insort(self._orders.setdefault(context.tenant, []), (*context.rank, context))

    def remove(self, context: ProgramContext) -> None:
        """Remove a program."""
        del self.contexts[context.program.program_id]
        order = self._orders[context.tenant]
        del order[bisect_left(order, context.rank)]
        if not order:
            del self._orders[context.tenant]

    def move(self, context: ProgramContext, key: float) -> None:
        """Change the key of a program."""
        order = self._orders[context.tenant]
        del order[bisect_left(order, context.rank)]
        context.key = key
        insort(order, (*context.rank, context))

    def rekey(self, key_of: Callable[[Program], float]) -> None:
        """Compute all keys again."""
        for tenant, order in self._orders.items():
            contexts = [context for _, _, context in order]
            for context in contexts:
                context.key = key_of(context.program)
            self._orders[tenant] = sorted((*context.rank, context) for context in contexts)

    def heads(self) -> list[ProgramContext]:
        """Return the first program of each tenant."""
        return [order[0][-1] for order in self._orders.values()]

    def following(self, context: ProgramContext) -> ProgramContext | None:
        """Return the tenant's next program after this one, None after the last."""
        order = self._orders[context.tenant]
        place = bisect_left(order, context.rank) + 1
        return order[place][-1] if place < len(order) else None

    def place(self, context: ProgramContext) -> int:
        """Return how many programs come before this one by their keys, those of other tenants included."""
        return sum(bisect_left(order, context.rank) for order in self._orders.values())

    def check(self) -> None:
        """Assert the invariants."""
        waiting = list(self.contexts.values())
        assert [own.since_s for own in waiting] == sorted(own.since_s for own in waiting)
        for program_id, own in self.contexts.items():
            assert own.program.program_id == program_id, program_id
            assert own.calls, program_id
            assert not own.is_active, program_id
        assert sum(map(len, self._orders.values())) == len(waiting)
        for tenant, order in self._orders.items():
            assert order, tenant
            assert order == sorted((*own.rank, own) for own in waiting if own.tenant == tenant)


class ClassGaps:
    """The last gaps (s) between the calls of a program, by class."""

    def __init__(self) -> None:
        self._gaps: dict[str, deque[float]] = {}

    def add(self, class_name: str, gap_s: float) -> None:
        """Add the time in which a program had no call."""
        gaps = self._gaps.pop(class_name, None) or deque(maxlen=GAP_WINDOW)
        gaps.append(gap_s)
        # The class seen last goes to the end, so that the first is the one to forget.
        self._gaps[class_name] = gaps
        if len(self._gaps) > MAX_CLASSES:
            del self._gaps[next(iter(self._gaps))]

    def long_gap_s(self, class_name: str) -> float | None:
        """Return a gap that few exceed; None if too few were seen."""
        gaps = self._gaps.get(class_name, ())
        return sorted(gaps)[int(GAP_QUANTILE * len(gaps))] if len(gaps) >= MIN_GAPS else None


class WorkingSetAdmission:
    """Decides which programs are active on one engine."""

    def __init__(
        self,
        capacity_tokens: float,
        max_idle_s: float,
        statistics: ProgramStatistics,
        token_cost: TokenCost,
        key_of: Callable[[Program], float],
    ) -> None:
        """Admit programs to an empty engine.

        Args:
            capacity_tokens: What the contexts of active programs may fill.
            max_idle_s: The longest time for which a program without a call stays active.
            statistics: Of the programs.
            token_cost: Of the engine.
            key_of: Returns the key of a program; the smallest is activated first.
        """
        self.capacity_tokens = capacity_tokens
        self.active = ActiveSet()
        self._max_idle_s = max_idle_s
        self._statistics = statistics
        self._token_cost = token_cost
        self._key_of = key_of
        self._inactive = InactivePrograms()
        self._numbers = count()
        self._gaps = ClassGaps()
        self._changed: dict[Call, bool] = {}
        """Calls that the present review admitted or withdrew, and whether they were admitted before."""
        self._is_dirty = False
        self._next_step = 0

    @property
    def waiting_programs(self) -> int:
        """The number of inactive programs with calls."""
        return len(self._inactive)

    def is_active(self, program_id: str) -> bool:
        """Whether the program's calls may run."""
        return program_id in self.active.contexts

    def place(self, program_id: str) -> int | None:
        """Return an inactive program's place in the order of activation, from 1; None if it does not wait."""
        context = self._inactive.contexts.get(program_id)
        return None if context is None else 1 + self._inactive.place(context)

    def places(self) -> dict[str, int]:
        """Return the places of all inactive programs, in their order."""
        waiting = sorted(self._inactive.values(), key=_key)
        return {own.program.program_id: place for place, own in enumerate(waiting, start=1)}

    def context(self, program_id: str) -> ProgramContext | None:
        """Return the context of a program, None if it is unknown."""
        return self.active.contexts.get(program_id) or self._inactive.contexts.get(program_id)

    def is_due(self, step: int) -> bool:
        """Whether there is anything to review: a program changed, or contexts have grown for some steps."""
        return self._is_dirty or step >= self._next_step

    def steps_to_review(self, step: int) -> int:
        """Return the steps until contexts are measured again."""
        return 1 if self._is_dirty else max(1, self._next_step - step)

    def arrive(self, call: Call, program: Program, context: Context | None, now: float) -> None:
        """Note an arriving call, and set whether it is admitted."""
        shape = context or _NOTHING
        # From the table, which also knows programs that have lost their place here since.
        if len(program.active_calls) == 1 and program.last_completion_s is not None:
            self._gaps.add(program.class_name, now - program.last_completion_s)
        own = self.context(program.program_id)
        if own is None:
            own = ProgramContext(
                program=program, tenant=call.tenant, weight=call.weight, number=next(self._numbers)
            )
            own.key = self._key_of(program)
            self._inactive.add(own, now)
        # The entry may be another one than that of its last call, which the table has dropped since.
        own.program, own.weight = program, call.weight
        self._rekey(own)
        if shape.prefix is not None and shape.prefix != own.prefix:
            self._set_prefix(own, shape)
        own.calls[call.call_id] = HeldCall(call, shape.tokens, shape.shared_tokens)
        self._resize(own)
        if len(self._inactive) == len(own.calls) == 1 and not own.is_active and self._fits(own):
            self._activate(own)
        call.is_admitted = own.is_active
        self._is_dirty |= not own.is_active or self._is_over

    def leave(self, call: Call, program: Program, context_tokens: int, now: float) -> None:
        """Note that a call has left, and what it leaves in KV memory."""
        own = self.context(call.program_id)
        assert own is not None, call.call_id
        del own.calls[call.call_id]
        own.last_tokens = context_tokens or own.last_tokens
        self._rekey(own)
        if not own.calls and own.is_active:
            own.since_s = now
        elif not own.calls:
            self._inactive.remove(own)
        if program.is_ended and not own.calls:
            self.forget(call.program_id)
        self._resize(own)
        self._is_dirty |= bool(self._inactive)

    def forget(self, program_id: str) -> None:
        """Free what is kept for a program that has no call and will have none."""
        own = self.active.contexts.get(program_id)
        if own is not None and not own.calls:
            self._drop(own)
            self._is_dirty |= bool(self._inactive)

    def rekey(self) -> None:
        """Compute all keys again."""
        for own in self.active.contexts.values():
            own.key = self._key_of(own.program)
        self._inactive.rekey(self._key_of)
        self._is_dirty |= bool(self._inactive)

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:
        """Activate what fits and deactivate what does not; return the waiting calls that this concerns."""
        self._is_dirty = False
        self._next_step = step + REVIEW_STEPS
        for own in self.active.contexts.values():
            for call_id, held in own.calls.items():
                if held.call.is_running:
                    held.tokens = tokens_of(call_id)
            self._resize(own)
        if self._is_over:
            self._deactivate_in_order(now)
        if self._inactive:
            self._drop_idle(now)
            self._put_starving_first(now)
            self._activate_in_order(now)
            self._break_standstill()
        changed, self._changed = self._changed, {}
        return [call for call, was_admitted in changed.items() if call.is_admitted != was_admitted]

    # The set.

    @property
    def _is_over(self) -> bool:
        return self.active.tokens > self.capacity_tokens

    def _fits(self, own: ProgramContext) -> bool:
        is_first = not self.active.contexts
        return is_first or self.active.tokens + self.active.added_tokens(own) <= self.capacity_tokens

    def _resize(self, own: ProgramContext) -> None:
        own_tokens = own.measure()
        if own.is_active:
            self.active.resize(own, own_tokens)
        own.own_tokens = own_tokens

    def _set_prefix(self, own: ProgramContext, shape: Context) -> None:
        if own.is_active:
            self.active.remove(own)
        own.prefix, own.prefix_tokens = shape.prefix, shape.prefix_tokens
        if own.is_active:
            self.active.add(own)

    def _rekey(self, own: ProgramContext) -> None:
        key = self._key_of(own.program)
        if own.is_active:
            own.key = key
        elif key != own.key:
            self._inactive.move(own, key)

    def _activate(self, own: ProgramContext) -> None:
        self._inactive.remove(own)
        own.is_active = True
        self.active.add(own)
        self._admit(own, is_admitted=True)

    def _deactivate(self, own: ProgramContext, now: float) -> None:
        self._drop(own)
        if own.calls:
            self._inactive.add(own, now)
            self._admit(own, is_admitted=False)

    def _drop(self, own: ProgramContext) -> None:
        self.active.remove(own)
        own.is_active = False

    def _admit(self, own: ProgramContext, *, is_admitted: bool) -> None:
        for held in own.calls.values():
            if not held.call.is_running and held.call.is_admitted != is_admitted:
                self._changed.setdefault(held.call, held.call.is_admitted)
                held.call.is_admitted = is_admitted

    def _tenant_share(self, own: ProgramContext) -> float:
        return self.active.tenant_tokens(own.tenant) / own.weight

    # The review.

    def _deactivate_in_order(self, now: float) -> None:
        """Deactivate the largest key of the tenant with the most context by weight, until the rest fits."""
        by_tenant: dict[str, list[ProgramContext]] = {}
        for own in sorted(self.active.contexts.values(), key=attrgetter("rank")):
            by_tenant.setdefault(own.tenant, []).append(own)
        turns = [self._turn_out(queue[-1]) for queue in by_tenant.values()]
        heapify(turns)
        while self._is_over and len(self.active.contexts) > 1:
            own = heappop(turns)[-1]
            self._deactivate(own, now)
            by_tenant[own.tenant].pop()
            if by_tenant[own.tenant]:
                heappush(turns, self._turn_out(by_tenant[own.tenant][-1]))

    def _turn_out(self, own: ProgramContext) -> _Turn:
        return (-self._tenant_share(own), -own.key, -own.number, own)

    def _turn_in(self, own: ProgramContext) -> _Turn:
        return (self._tenant_share(own), own.key, own.number, own)

    def _drop_idle(self, now: float) -> None:
        """Deactivate programs without a call for which others have waited long enough."""
        limits_s: dict[str, float] = {}
        for own in [own for own in self.active.contexts.values() if not own.calls]:
            name = own.program.class_name
            if name not in limits_s:
                limits_s[name] = self._idle_limit_s(name)
            if now - own.since_s > limits_s[name]:
                self._drop(own)

    def _idle_limit_s(self, class_name: str) -> float:
        """Return how long to keep the context of an idle program while others wait for memory.

        Keeping it withholds its share of memory, and with it that share of the engine's time; evicting it
        costs its prefill. Both are in proportion to its tokens, so they are equal after the time in which the
        engine prefills all of that memory. To stop then costs at most twice what the best choice would (the
        "ski rental" rule: Karlin et al., "Competitive Snoopy Caching", Algorithmica 1988). A class of
        programs whose gaps are known to be longer gets more time, within a bound.
        """
        hold_s = self._token_cost.seconds * self.capacity_tokens
        gap_s = self._gaps.long_gap_s(class_name)
        most_s = MAX_HOLDS * hold_s
        return min(self._max_idle_s, most_s if gap_s is None else max(hold_s, min(gap_s, most_s)))

    def _put_starving_first(self, now: float) -> None:
        limit_s = STARVING * self._statistics.response_s
        for own in self._inactive.contexts.values():
            if now - own.since_s <= limit_s:
                break
            if own.key > -math.inf:
                self._inactive.move(own, -math.inf)

    def _activate_in_order(self, now: float) -> None:
        patience_s = PATIENCE * self._statistics.response_s
        turns = [self._turn_in(own) for own in self._inactive.heads()]
        heapify(turns)
        passed = 0
        while turns and passed <= MAX_PASSED:
            own = heappop(turns)[-1]
            following = self._inactive.following(own)
            if self._fits(own):
                self._activate(own)
            elif now - own.since_s > patience_s:
                break
            else:
                passed += 1
            if following is not None:
                heappush(turns, self._turn_in(following))

    def _break_standstill(self) -> None:
        """Where only idle programs are active, activate one that waits in the place of the longest idle."""
        if any(own.calls for own in self.active.contexts.values()):
            return
        first = min(self._inactive.heads(), key=attrgetter("rank"))
        for own in sorted(self.active.contexts.values(), key=attrgetter("since_s")):
            if self._fits(first):
                break
            self._drop(own)
        self._activate(first)

    def check(self) -> None:
        """Assert the invariants."""
        self.active.check()
        self._inactive.check()
        assert not self._changed
        assert not self.active.contexts.keys() & self._inactive.contexts.keys()


def make_admission(
    config: SchedulerConfig,
    kv_tokens: float,
    statistics: ProgramStatistics,
    token_cost: TokenCost,
    key_of: Callable[[Program], float],
) -> WorkingSetAdmission | None:
    """Return the admission of an engine with this KV memory (tokens); None if every program may run."""
    if config.admission == "none" or kv_tokens == math.inf:
        return None
    return WorkingSetAdmission(config.kv_share * kv_tokens, config.idle_s, statistics, token_cost, key_of)
