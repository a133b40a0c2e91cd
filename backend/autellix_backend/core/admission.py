"""Admission by working set: programs run as long as their contexts fit into KV memory together.

A program is active or not, and calls of inactive programs wait. A program that is between two calls stays
active, because its next call needs its context again; were all contexts admitted that ask, each would be
evicted before its program comes back, and every call would prefill everything again. (Denning, "The Working
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
idle for too long. As programs may call without a pause and never end, memory is also taken from them, at most
once in the time in which the engine prefills all of it:

- A tenant with less than its share by weight takes it from those with more, after that time.
- A program takes it from any other after STARVING times R, R being at most `idle_s` here, and after MAX_HOLDS
  times that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, count
from operator import attrgetter
from typing import TYPE_CHECKING

from autellix_backend.core.arrival import Context
from autellix_backend.core.call import Call
from autellix_backend.core.idle import MAX_HOLDS, IdleLimits
from autellix_backend.core.statistics import ProgramStatistics, TokenCost
from autellix_backend.core.table import Program
from autellix_backend.core.working_set import ActiveSet, InactivePrograms, ProgramContext

if TYPE_CHECKING:
    from autellix_backend.core.config import SchedulerConfig

__all__ = ["REVIEW_STEPS", "WorkingSetAdmission", "make_admission"]

REVIEW_STEPS = 16
"""Contexts grow by a token in each step: so often they are measured again."""
PATIENCE = 2.0
"""After so many mean response times an inactive program lets no other pass."""
STARVING = 8.0
"""After so many it goes first, and others give way: by attained service alone it might never run."""
MAX_PASSED = 64
"""The most programs that are passed over in one review, which bounds its cost."""
_NOTHING = Context(0)


_Turn = tuple[float, float, int, ProgramContext]


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
        self.idle = IdleLimits(capacity_tokens, max_idle_s, token_cost)
        self._statistics = statistics
        self._key_of = key_of
        self._inactive = InactivePrograms()
        self._numbers = count()
        self._leaving: dict[ProgramContext, int] = {}
        """Inactive programs with running calls, and the KV memory (tokens) of these."""
        self._changed: dict[Call, bool] = {}
        """Calls that the present review admitted or withdrew, and whether they were admitted before."""
        self._is_dirty = False
        self._next_step = 0
        self._next_turn_s = 0.0
        """When memory may be taken from active programs again."""

    @property
    def waiting_programs(self) -> int:
        """The number of inactive programs with calls."""
        return len(self._inactive)

    @property
    def inactive(self) -> Mapping[str, ProgramContext]:
        """The inactive programs with calls, by id."""
        return self._inactive.contexts

    @property
    def response_s(self) -> float:
        """The mean response time (s) of programs."""
        return self._statistics.response_s

    def is_active(self, program_id: str) -> bool:
        """Whether the program's calls may run."""
        return program_id in self.active.contexts

    def places(self) -> dict[str, int]:
        """Return the places of all inactive programs, in their order."""
        return {own.program.program_id: place for place, own in enumerate(self._inactive.ranked(), start=1)}

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
            self.idle.gaps.add(call.tenant, program.class_name, now - program.last_completion_s)
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
        own.calls[call.call_id] = call
        own.contexts.add(
            call.call_id,
            shape.tokens,
            shared=shape.shared_tokens,
            follows=shape.follows,
        )
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
        own.contexts.leave(call.call_id, context_tokens)
        self._rekey(own)
        self._resize(own)
        if not own.calls and own.is_active:
            own.since_s = now
        elif not own.calls:
            self._inactive.remove(own)
        if program.is_ended and not own.calls:
            self.forget(call.program_id)
        self._is_dirty |= bool(self._inactive)

    def forget(self, program_id: str) -> None:
        """Free what is kept for a program that has no call and will have none."""
        own = self.active.contexts.get(program_id)
        if own is not None and not own.calls:
            self._drop(own)
            self._is_dirty |= bool(self._inactive)

    def rekey(self, program_id: str) -> None:
        """Compute the key of a program again, if it is known."""
        own = self.context(program_id)
        if own is not None:
            self._rekey(own)

    def review(self, now: float, step: int, tokens_of: Callable[[str], int]) -> list[Call]:
        """Activate what fits and deactivate what does not; return the waiting calls that this concerns."""
        self._is_dirty = False
        if step >= self._next_step:
            self._next_step = step + REVIEW_STEPS
            self._measure_active(tokens_of)
        self._measure_leaving(tokens_of)
        self._deactivate_in_order(now, lambda: not self._is_over or len(self.active.contexts) == 1)
        if self._inactive:
            self._drop_idle(now)
            self._put_starving_first(now)
            self._activate_in_order(now)
            self._take_turns(now)
            self._break_standstill()
        changed, self._changed = self._changed, {}
        return [call for call, was_admitted in changed.items() if call.is_admitted != was_admitted]

    # The set.

    @property
    def _is_over(self) -> bool:
        return self.active.tokens > self.capacity_tokens

    @property
    def _is_full(self) -> bool:
        """Whether not even the smallest program that waits could fit."""
        if not self.active.contexts:
            return False
        leaving = self._leaving.values()
        # A program's own running calls are no obstacle to it.
        least = self._inactive.least_tokens + (sum(leaving) - max(leaving) if leaving else 0)
        return self.active.tokens + least > self.capacity_tokens

    def _fits(self, own: ProgramContext) -> bool:
        if not self.active.contexts:
            return True
        leaving = sum(self._leaving.values()) - self._leaving.get(own, 0) if self._leaving else 0
        # Most of those that wait are refused without a look at their prefix.
        is_too_large = self.active.tokens + own.own_tokens + leaving > self.capacity_tokens
        return not is_too_large and self._has_room(own, beside=leaving)

    def _has_room(self, own: ProgramContext, beside: int = 0) -> bool:
        return self.active.tokens + self.active.added_tokens(own) + beside <= self.capacity_tokens

    def _measure_active(self, tokens_of: Callable[[str], int]) -> None:
        """Measure the running calls of active programs, which grow with every step."""
        for own in self.active.contexts.values():
            running = [call_id for call_id, call in own.calls.items() if call.is_running]
            for call_id in running:
                own.contexts.resize(call_id, tokens_of(call_id))
            if running:
                self._resize(own)

    def _measure_leaving(self, tokens_of: Callable[[str], int]) -> None:
        """Measure the running calls of programs that have become inactive: they keep their memory."""
        programs, self._leaving = self._leaving, {}
        for own in programs:
            running = [call_id for call_id, call in own.calls.items() if call.is_running]
            if own.is_active or not running:
                continue
            for call_id in running:
                own.contexts.resize(call_id, tokens_of(call_id))
            self._leaving[own] = own.contexts.tokens_of(running, own.prefix_tokens)

    def _resize(self, own: ProgramContext) -> None:
        own_tokens = own.measure()
        if own_tokens != own.own_tokens:
            (self.active if own.is_active else self._inactive).resize(own, own_tokens)
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
        self._leaving.pop(own, None)
        self._admit(own, is_admitted=True)

    def _deactivate(self, own: ProgramContext, now: float) -> None:
        self._drop(own)
        if own.calls:
            self._inactive.add(own, now)
            running = [call_id for call_id, call in own.calls.items() if call.is_running]
            if running:
                self._leaving[own] = own.contexts.tokens_of(running, own.prefix_tokens)
            self._admit(own, is_admitted=False)

    def _drop(self, own: ProgramContext) -> None:
        self.active.remove(own)
        own.is_active = False

    def _admit(self, own: ProgramContext, *, is_admitted: bool) -> None:
        for call in own.calls.values():
            is_kept = call.is_running or (call.is_pinned and not is_admitted)
            if not is_kept and call.is_admitted != is_admitted:
                self._changed.setdefault(call, call.is_admitted)
                call.is_admitted = is_admitted

    def _tenant_share(self, own: ProgramContext) -> float:
        return self.active.tenant_tokens(own.tenant) / own.weight

    # The review.

    def _deactivate_in_order(
        self, now: float, is_enough: Callable[[], bool], least_share: float = -math.inf
    ) -> None:
        """Deactivate the largest key of the tenant with the most context by weight, until it is enough.

        A tenant with no more context than `least_share` times its weight gives none.
        """
        if is_enough():
            return
        by_tenant: dict[str, list[ProgramContext]] = {}
        for own in sorted(self.active.contexts.values(), key=attrgetter("rank")):
            by_tenant.setdefault(own.tenant, []).append(own)
        turns = [self._turn_out(queue[-1]) for queue in by_tenant.values()]
        heapify(turns)
        while turns and -turns[0][0] > least_share and not is_enough():
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
        limits_s: dict[tuple[str, str], float] = {}
        least_s = self.idle.least_s
        idle = [own for own in self.active.contexts.values() if not own.calls]
        for own in idle:
            if now - own.since_s <= least_s:
                continue
            kind = (own.tenant, own.program.class_name)
            if kind not in limits_s:
                limits_s[kind] = self.idle.of_class(*kind)
            kept_s = self.idle.of_program(own.program.program_id, own.own_tokens, limits_s[kind])
            if now - own.since_s > kept_s:
                self._drop(own)

    def _put_starving_first(self, now: float) -> None:
        limit_s = STARVING * self._statistics.response_s
        for own in self._inactive.contexts.values():
            if now - own.since_s <= limit_s:
                break
            if own.key > -math.inf:
                self._inactive.move(own, -math.inf)

    def _activate_in_order(self, now: float) -> None:
        if self._is_full:
            return
        patience_s = PATIENCE * self._statistics.response_s
        turns = [self._turn_in(own) for own in self._inactive.heads()]
        heapify(turns)
        walks: dict[str, Iterator[ProgramContext]] = {}
        passed = 0
        while turns and passed <= MAX_PASSED:
            own = heappop(turns)[-1]
            if own.tenant not in walks:
                walks[own.tenant] = self._inactive.walk(own.tenant)
                next(walks[own.tenant])
            following = next(walks[own.tenant], None)
            if self._fits(own):
                self._activate(own)
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
        hold_s = self.idle.hold_s
        self._next_turn_s = now + hold_s
        response_s = min(self._statistics.response_s, self.idle.longest_s)
        starving_s = max(MAX_HOLDS * hold_s, STARVING * response_s)
        waiting = self._inactive.contexts.values()
        # The first of a tenant has waited for longest.
        longest = {own.tenant: own for own in reversed(waiting)}
        weights = {own.tenant: own.weight for own in chain(self.active.contexts.values(), waiting)}
        even_share = self.capacity_tokens / sum(weights.values())
        for own in sorted(longest.values(), key=self._turn_in):
            waited_s = now - own.since_s
            share = self._tenant_share(own) + (own.own_tokens + own.prefix_tokens) / own.weight
            is_starving = waited_s > starving_s
            if is_starving or (waited_s > hold_s and share <= even_share):
                least_share = -math.inf if is_starving else even_share
                self._deactivate_in_order(now, partial(self._may_turn, own), least_share)
                if self._may_turn(own):
                    self._inactive.move(own, -math.inf)
                    self._activate(own)
                    break

    def _may_turn(self, own: ProgramContext) -> bool:
        """Whether others have given enough; the blocks of their running calls follow when these end."""
        return not self.active.contexts or self._has_room(own)

    def _break_standstill(self) -> None:
        """Where only idle programs are active, activate one that waits in the place of the longest idle."""
        if any(own.calls for own in self.active.contexts.values()):
            return
        first = min(self._inactive.heads(), key=attrgetter("rank"))
        for own in sorted(self.active.contexts.values(), key=attrgetter("since_s")):
            if self._has_room(first):
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
    if not config.has_admission or kv_tokens == math.inf:
        return None
    return WorkingSetAdmission(config.kv_share * kv_tokens, config.idle_s, statistics, token_cost, key_of)
