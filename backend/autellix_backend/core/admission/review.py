"""The review of an engine's memory: which programs lose it, and which of those that wait get it.

No program starves. Among those of one tenant, with R the mean response time of programs:

- Under `boost`, only programs that arrive within g * ln(1 / (1 - exp(-w / g))) seconds after a program go
  before it by their keys, g being the strength and w the seconds of the least work (see `core.boost`).
- Once a program has waited for PATIENCE times R, none with a larger key is activated before it.
- Once it has waited for STARVING times R, under any policy, none that has waited for less is.

Active programs stay active while they fit: a waiting program needs memory that others leave, shrink out of,
or leave idle for too long. As programs may call without a pause and never end, memory is also taken from
them, at most once in the time in which the engine prefills all of it:

- A tenant with less than its share by weight takes it from those with more, after that time.
- A program takes it from any other after STARVING times R, R being at most `idle_s` here, and after MAX_HOLDS
  times that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter

from autellix_backend.core.admission.idle import MAX_HOLDS, IdleLimits
from autellix_backend.core.admission.memory import EngineMemory
from autellix_backend.core.admission.programs import ProgramContext
from autellix_backend.core.statistics import ProgramStatistics

PATIENCE = 2.0
"""After so many mean response times an inactive program lets no other pass."""
STARVING = 8.0
"""After so many it goes first, and others give way: by attained service alone it might never run."""
MAX_PASSED = 64
"""The most programs that are passed over in one review, which bounds its cost."""

_Turn = tuple[float, float, int, ProgramContext]


class MemoryReview:
    """Moves programs in and out of one engine's memory."""

    def __init__(self, memory: EngineMemory, idle: IdleLimits, statistics: ProgramStatistics) -> None:
        self._memory = memory
        self._idle = idle
        self._statistics = statistics
        self._next_turn_s = 0.0
        """When memory may be taken from active programs again."""

    def run(self, now: float) -> None:
        """Deactivate what has outgrown the memory, and activate what fits."""
        memory = self._memory
        self._deactivate(now, lambda: not memory.is_over or len(memory.active.contexts) == 1)
        if memory.inactive:
            self._drop_idle(now)
            self._put_starving_first(now)
            self._activate(now)
            self._take_turns(now)
            self._break_standstill()

    def _deactivate(self, now: float, is_enough: Callable[[], bool], least_share: float = -math.inf) -> None:
        """Deactivate the largest key of the tenant with the most context by weight, until it is enough.

        A tenant with no more context than `least_share` times its weight gives none.
        """
        if is_enough():
            return
        by_tenant: dict[str, list[ProgramContext]] = {}
        for own in sorted(self._memory.active.contexts.values(), key=attrgetter("rank")):
            by_tenant.setdefault(own.tenant, []).append(own)
        turns = [self._turn_out(queue[-1]) for queue in by_tenant.values()]
        heapify(turns)
        while turns and -turns[0][0] > least_share and not is_enough():
            own = heappop(turns)[-1]
            self._memory.deactivate(own, now)
            by_tenant[own.tenant].pop()
            if by_tenant[own.tenant]:
                heappush(turns, self._turn_out(by_tenant[own.tenant][-1]))

    def _turn_out(self, own: ProgramContext) -> _Turn:
        return (-self._memory.tenant_share(own), -own.key, -own.number, own)

    def _turn_in(self, own: ProgramContext) -> _Turn:
        return (self._memory.tenant_share(own), own.key, own.number, own)

    def _drop_idle(self, now: float) -> None:
        """Deactivate programs without a call for which others have waited long enough."""
        limits_s: dict[tuple[str, str], float] = {}
        least_s = self._idle.least_s
        idle = [own for own in self._memory.active.contexts.values() if not own.calls]
        for own in idle:
            if now - own.since_s <= least_s:
                continue
            kind = (own.tenant, own.program.class_name)
            if kind not in limits_s:
                limits_s[kind] = self._idle.of_class(*kind)
            kept_s = self._idle.of_program(own.program.program_id, own.own_tokens, limits_s[kind])
            if now - own.since_s > kept_s:
                self._memory.drop(own)

    def _put_starving_first(self, now: float) -> None:
        limit_s = STARVING * self._statistics.response_s
        for own in self._memory.inactive.contexts.values():
            if now - own.since_s <= limit_s:
                break
            if own.key > -math.inf:
                self._memory.inactive.move(own, -math.inf)

    def _activate(self, now: float) -> None:
        """Activate what fits, in the order of keys and of the tenants' shares."""
        memory = self._memory
        if memory.is_full:
            return
        patience_s = PATIENCE * self._statistics.response_s
        turns = [self._turn_in(own) for own in memory.inactive.heads()]
        heapify(turns)
        walks: dict[str, Iterator[ProgramContext]] = {}
        passed = 0
        while turns and passed <= MAX_PASSED:
            own = heappop(turns)[-1]
            if own.tenant not in walks:
                walks[own.tenant] = memory.inactive.walk(own.tenant)
                next(walks[own.tenant])
            following = next(walks[own.tenant], None)
            if memory.fits(own):
                memory.activate(own)
            elif now - own.since_s > patience_s:
                # Those of other tenants still may.
                continue
            else:
                passed += 1
            if following is not None:
                heappush(turns, self._turn_in(following))

    def _take_turns(self, now: float) -> None:
        """Take memory for the program that has waited for too long, of the tenant with the least."""
        if now < self._next_turn_s:
            return
        memory, hold_s = self._memory, self._idle.hold_s
        self._next_turn_s = now + hold_s
        response_s = min(self._statistics.response_s, self._idle.longest_s)
        starving_s = max(MAX_HOLDS * hold_s, STARVING * response_s)
        waiting = memory.inactive.contexts.values()
        # The first of a tenant has waited for longest.
        longest = {own.tenant: own for own in reversed(waiting)}
        weights = {own.tenant: own.weight for own in chain(memory.active.contexts.values(), waiting)}
        even_share = memory.capacity_tokens / sum(weights.values())
        for own in sorted(longest.values(), key=self._turn_in):
            waited_s = now - own.since_s
            share = memory.tenant_share(own) + (own.own_tokens + own.prefix_tokens) / own.weight
            is_starving = waited_s > starving_s
            if is_starving or (waited_s > hold_s and share <= even_share):
                may_turn = partial(self._may_turn, own)
                self._deactivate(now, may_turn, -math.inf if is_starving else even_share)
                if may_turn():
                    memory.inactive.move(own, -math.inf)
                    memory.activate(own)
                    break

    def _may_turn(self, own: ProgramContext) -> bool:
        """Whether others have given enough; the blocks of their running calls follow when these end."""
        return not self._memory.active.contexts or self._memory.has_room(own)

    def _break_standstill(self) -> None:
        """Where only idle programs are active, activate the first that waits in place of the longest idle."""
        memory = self._memory
        if any(own.calls for own in memory.active.contexts.values()):
            return
        first = min(memory.inactive.heads(), key=attrgetter("rank"))
        for own in sorted(memory.active.contexts.values(), key=attrgetter("since_s")):
            if memory.has_room(first):
                break
            memory.drop(own)
        memory.activate(first)
