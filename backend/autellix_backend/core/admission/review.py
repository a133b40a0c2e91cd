"""The review of an engine's memory: which programs lose it, and which of those that wait get it.

No program starves. Among those of one tenant, with R the mean response time of programs:

- Under `boost`, only programs that arrive within g * ln(1 / (1 - exp(-w / g))) seconds after a program go
  before it by their keys, g being the strength and w the seconds of the least work (see `core.boost`).
- Once a program has waited for PATIENCE times R, none with a larger key is activated before it.
- Once it has waited for STARVING times R, under any policy, none that has waited for less is. For a program
  of priority `batch` this time begins a day later.

Active programs stay active while they fit: a waiting program needs memory that others leave, shrink out of,
or leave idle for too long. As programs may call without a pause and never end, memory is also taken from
them, at most once in the time in which the engine prefills all of it:

- A tenant with less than its share by weight takes it from those with more, after that time.
- A program takes it from any other after STARVING times R, R being at most `idle_s` here, and after
  STARVING_FILLS times that time; then no other does until the prefills that this costs are RESCUE_SHARE of
  the time since.

Programs of priority `batch` give theirs at once to others of their tenant that go before them. Between
tenants neither priorities nor keys decide: where their shares are equal, the program that came first does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter

from autellix_backend.core.admission.costs import ContextCosts
from autellix_backend.core.admission.idle import LEAST_HOLD_S, IdleLimits
from autellix_backend.core.admission.memory import EngineMemory
from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.place import Place
from autellix_backend.core.statistics import ProgramStatistics

PATIENCE = 2.0
"""An inactive program that has waited this many mean response times lets no other pass."""
STARVING = 8.0
"""An inactive program that has waited this many mean response times goes first, and active ones make room:
by attained service alone it might never run."""
STARVING_FILLS = 4.0
"""And not before this multiple of the time in which the engine prefills all of its memory."""
RESCUE_SHARE = 0.05
"""The share of the engine's time that taking memory for starving programs may cost."""
STANDSTILL_SHARE = 0.5
"""How long the engine stands still for idle programs, as a share of what displacing them would cost."""
MAX_PASSED = 64
"""The most programs that are passed over in one review, which bounds its cost."""

_Candidate = tuple[float, int, ProgramContext]
_FIRST = Place(-math.inf)
"""The place of a program that goes before all others of its tenant."""


class MemoryReview:
    """Moves programs in and out of one engine's memory."""

    def __init__(
        self,
        memory: EngineMemory,
        idle: IdleLimits,
        costs: ContextCosts,
        statistics: ProgramStatistics,
        *,
        waits_at_standstill: bool,
    ) -> None:
        """Review an engine's memory.

        Args:
            memory: The memory.
            idle: How long idle programs keep it.
            costs: What giving it back costs.
            statistics: Of the programs.
            waits_at_standstill: Whether an engine without work waits for idle programs for a moment.
        """
        self._memory = memory
        self._idle = idle
        self._costs = costs
        self._statistics = statistics
        self._waits_at_standstill = waits_at_standstill
        self._next_taking_s = 0.0
        """The earliest time at which memory may be taken from active programs again."""
        self._next_rescue_s = 0.0
        """The earliest time at which it may be taken for a starving program again."""
        self.wake_s = math.inf
        """When to run again even if nothing happens: the engine stands still, and others wait."""

    def run(self, now: float) -> None:
        """Deactivate what has outgrown the memory, and activate what fits."""
        memory = self._memory
        self._deactivate(now, lambda: not (memory.is_over and memory.active.has_unpaused(2)))
        memory.trim_parked()
        self.wake_s = math.inf
        if memory.inactive:
            self._drop_idle(now)
            self._give_up_idle(now)
            self._put_starving_first(now)
            if memory.has_batch:
                self._make_way(now)
            self._activate(now)
            self._take_memory(now)
            self._break_standstill(now)
            memory.trim_parked()

    def _deactivate(
        self, now: float, is_enough: Callable[[], bool], least_share: float = -math.inf
    ) -> list[ProgramContext]:
        """Deactivate the largest key of the tenant with the most context by weight, until it is enough.

        A tenant with no more context than `least_share` times its weight gives none, and neither does a
        paused program, which would hold its memory all the same. Returns those that gave.
        """
        gave: list[ProgramContext] = []
        if is_enough():
            return gave
        orders = self._memory.active_orders
        walks = {tenant: _unpaused(orders.worst_first(tenant)) for tenant in orders.tenants()}
        heads = [next(walk, None) for walk in walks.values()]
        candidates = [self._to_deactivate(context) for context in heads if context is not None]
        heapify(candidates)
        while candidates and -candidates[0][0] > least_share and not is_enough():
            context = heappop(candidates)[-1]
            self._memory.deactivate(context, now)
            gave.append(context)
            following = next(walks[context.tenant], None)
            if following is not None:
                heappush(candidates, self._to_deactivate(following))
        return gave

    def _to_deactivate(self, context: ProgramContext) -> _Candidate:
        return (-self._memory.tenant_share(context), -context.number, context)

    def _drop_idle(self, now: float) -> None:
        """Deactivate programs without a call for which others have waited long enough."""
        memory = self._memory
        is_kept = memory.keeps_parked
        for context, limit_s in self._idle.limits(memory.active):
            # What host memory would not keep has its full price.
            kept_s = self._idle.of_program(context, limit_s) if is_kept else limit_s
            if now - context.since_s > kept_s:
                memory.deactivate(context, now)

    def _give_up_idle(self, now: float) -> None:
        """Give up parked programs without a call, while others wait that host memory has no room for."""
        memory = self._memory
        if memory.parked.contexts and not all(each.is_parked for each in memory.inactive.contexts.values()):
            for context, limit_s in self._idle.limits(memory.parked):
                if now - context.since_s > limit_s:
                    memory.give_up(context)

    def _put_starving_first(self, now: float) -> None:
        limit_s = STARVING * self._statistics.response_s
        for context in self._memory.inactive.contexts.values():
            if now - context.since_s <= limit_s:
                break
            if context.place != _FIRST and context.overdue_s(now) > limit_s:
                self._memory.move(context, _FIRST)

    def _make_way(self, now: float) -> None:
        """Give the memory of `batch` programs, the worst first, to others of their tenant with smaller keys.

        The blocks of their running calls follow when these end. A tenant has no more memory after it.
        """
        memory = self._memory
        batch: dict[str, list[ProgramContext]] = {}
        for context in memory.active.contexts.values():
            if context.gives_way and not context.is_paused:
                batch.setdefault(context.tenant, []).append(context)
        for tenant, giving in batch.items():
            if tenant not in memory.inactive.orders.tenants():
                continue
            giving.sort(key=attrgetter("rank"))
            spare = 0
            for context in islice(memory.inactive.orders.walk(tenant), MAX_PASSED):
                if context.gives_way or memory.has_room(context):
                    break
                giving = [each for each in giving if each.key > context.key]
                needed = memory.active.added_tokens(context)
                if needed > spare + sum(each.own_tokens for each in giving):
                    continue
                while spare < needed:
                    gone = giving.pop()
                    spare += gone.own_tokens
                    memory.deactivate(gone, now)
                spare -= needed
                memory.make_host_room(context)
                memory.activate(context)

    def _activate(self, now: float) -> None:
        """Activate what fits, in the order of keys and of the tenants' shares."""
        memory = self._memory
        if not memory.inactive or memory.is_full:
            return
        patience_s = PATIENCE * self._statistics.response_s
        candidates = memory.by_share(memory.inactive.orders.heads())
        heapify(candidates)
        walks: dict[str, Iterator[ProgramContext]] = {}
        barred: set[str] = set()
        """Tenants with a program that none may pass, but for parked ones: they have their place already."""
        passed, room = 0, memory.own_room_tokens
        while candidates and passed <= MAX_PASSED:
            context = heappop(candidates)[-1]
            if context.tenant not in walks:
                walks[context.tenant] = memory.inactive.orders.walk(context.tenant)
                next(walks[context.tenant])
            following = next(walks[context.tenant], None)
            may_pass = context.is_parked or context.tenant not in barred
            # Most are refused by a comparison.
            if may_pass and context.own_tokens <= room and memory.fits(context):
                memory.activate(context)
                room = memory.own_room_tokens
            elif now - context.since_s > patience_s and not memory.parked.contexts:
                # Those of other tenants still may.
                continue
            else:
                if now - context.since_s > patience_s:
                    barred.add(context.tenant)
                passed += 1
            if following is not None:
                heappush(candidates, (memory.tenant_share(following), following.number, following))

    def _take_memory(self, now: float) -> None:
        """Take memory for the program that has waited for too long, of the tenant with the least."""
        if now < self._next_taking_s:
            return
        memory, fill_s = self._memory, self._idle.fill_s
        self._next_taking_s = now + fill_s
        response_s = min(self._statistics.response_s, self._idle.longest_s)
        starving_s = max(STARVING_FILLS * fill_s, STARVING * response_s)
        longest = memory.inactive.longest(now)
        weights = {context.tenant: context.weight for context in memory.active.contexts.values()}
        weights |= {tenant: context.weight for tenant, context in longest.items()}
        even_share = memory.capacity_tokens / sum(weights.values())
        for _, _, context in sorted(memory.by_share(longest.values())):
            waited_s = now - context.since_s
            share = memory.tenant_share(context) + context.needed_tokens / context.weight
            is_starving = context.overdue_s(now) > starving_s and now >= self._next_rescue_s
            is_denied = waited_s > fill_s and share <= even_share and self._may_take_host(context)
            if is_starving or is_denied:
                has_enough = partial(self._has_enough, context)
                least_share = -math.inf if is_starving else even_share
                gave = self._deactivate(now, has_enough, least_share)
                if is_starving:
                    cost_s = sum(map(self._costs.restore_s, [context, *gave]))
                    self._next_rescue_s = now + max(fill_s, cost_s / RESCUE_SHARE)
                if has_enough():
                    memory.make_host_room(context)
                    memory.move(context, _FIRST)
                    memory.activate(context)
                    break

    def _may_take_host(self, context: ProgramContext) -> bool:
        """Whether host memory has room for a program, or keeps more for another tenant."""
        memory = self._memory
        return memory.has_host_room(context) or memory.last_parked().tenant != context.tenant

    def _has_enough(self, context: ProgramContext) -> bool:
        """Whether others have given enough; the blocks of their running calls follow when these end."""
        return not self._memory.active.has_unpaused(1) or self._memory.has_room(context)

    def _break_standstill(self, now: float) -> None:
        """Where no active program has a call that goes on, activate the first that waits.

        It takes the place of the longest idle ones, for which the engine stands still for a while. Paused
        ones keep their memory: whether there is enough beside them, only the engine knows, block by block.
        """
        memory = self._memory
        while memory.inactive and not memory.active.is_live:
            parked = [context for context in memory.parked.contexts.values() if context.calls]
            oldest = min(parked or memory.inactive.orders.heads(), key=attrgetter("number"))
            own = [context for context in parked if context.tenant == oldest.tenant]
            first = min(own or [oldest], key=attrgetter("rank"))
            idle = [context for context in memory.active.contexts.values() if not context.calls]
            idle.sort(key=attrgetter("since_s"))
            if idle and self._waits_at_standstill:
                wake_s = idle[-1].since_s + self._standstill_s(first, idle)
                if now < wake_s:
                    self.wake_s = wake_s
                    return
            for context in idle:
                if memory.has_room(first):
                    break
                memory.deactivate(context, now)
            memory.make_host_room(first)
            memory.activate(first)

    def _standstill_s(self, first: ProgramContext, idle: list[ProgramContext]) -> float:
        """Return how long the engine stands still for idle programs before it displaces some of them.

        Displacing them frees their memory for about a gap. Where that is worth less than restoring them, the
        engine waits for a part of the price: by the ski rental rule of `idle` for all of it, but the program
        that waits would also fill the batch. While gaps are unknown, it waits for a moment only.
        """
        cost_s = self._displacing_s(first, idle)
        gaps_s = [self._idle.gaps.mean_s(each.tenant, each.program.hints.class_name) for each in idle]
        known_s = [gap_s for gap_s in gaps_s if gap_s is not None]
        if len(known_s) < len(idle) or cost_s <= sum(known_s) / len(known_s):
            return min(LEAST_HOLD_S, cost_s)
        return min(STANDSTILL_SHARE * cost_s, self._idle.longest_s)

    def _displacing_s(self, program: ProgramContext, idle: list[ProgramContext]) -> float:
        """Return the seconds to restore what a program would displace of idle ones, the first ones first."""
        lack, cost_s = self._memory.lack_tokens(program), 0.0
        for context in idle:
            if lack <= 0:
                break
            cost_s += self._costs.recompute_s(context) * min(1.0, lack / max(1, context.own_tokens))
            lack -= context.own_tokens
        return cost_s


def _unpaused(contexts: Iterator[ProgramContext]) -> Iterator[ProgramContext]:
    return (context for context in contexts if not context.is_paused)
