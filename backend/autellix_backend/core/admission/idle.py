"""How long a program without a call keeps its share of KV memory while others wait for memory.

Keeping its context withholds its share of memory, and with it that share of the engine's time; evicting it
costs its prefill. Both are in proportion to its tokens, so they are equal after the time in which the engine
prefills all of that memory. While its gaps are unknown, it is evicted after that time, which costs at most
twice what the best choice would (the "ski rental" rule: Karlin et al., "Competitive Snoopy Caching",
Algorithmica 1988). Once its class has shown its gaps, it is kept for the time that would have cost least over
these (the same authors' average case: "Competitive Randomized Algorithms for Nonuniform Problems",
Algorithmica 1994): programs that mostly return soon are waited for, and those that pause for longer than
their contexts are worth give way at once.

A client may state when it expects the next call. Within the first of these times its program is kept for all
of it, as the estimate may be a little short, and beyond it evicted at once. So no hint keeps memory from
others for longer than a class without known gaps, which any client can make by a new name.

A load from host memory takes no engine time, only time of the context's own memory. By the same rule, the
part of a context that would be loaded is worth keeping for as long as the load takes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from autellix_backend.core.admission.costs import ContextCosts
from autellix_backend.core.admission.programs import ContextSet, ProgramContext

GAP_WINDOW, MIN_GAPS = 64, 8
"""Gaps between calls that are remembered of a class, and those needed before they count."""
GAP_SLACK = 1.05
"""A program is kept for a little longer than a gap that its class has made: the next may be as long."""
MAX_CLASSES = 256
LEAST_HOLD_S = 0.1
"""Idle programs stay active at least so long where their contexts would be loaded, and where the engine has
nothing else to do and displacing them is cheap: many clients only pass an answer on to the next call."""


class ClassGaps:
    """The last gaps (s) between the calls of a program, by class of a tenant."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[str, str], deque[float]] = {}

    def add(self, tenant: str, class_name: str, gap_s: float) -> None:
        """Add the time in which a program had no call."""
        key = (tenant, class_name)
        gaps = self._gaps.pop(key, None) or deque(maxlen=GAP_WINDOW)
        gaps.append(gap_s)
        # The class seen last goes to the end, so that the first is the one to forget.
        self._gaps[key] = gaps
        if len(self._gaps) > MAX_CLASSES:
            # The tenant with the most classes, so that none drives out those of others.
            most = Counter(tenant for tenant, _ in self._gaps).most_common(1)[0][0]
            del self._gaps[next(key for key in self._gaps if key[0] == most)]

    def mean_s(self, tenant: str, class_name: str) -> float | None:
        """Return the mean gap of a class; None if too few were seen."""
        gaps = self._gaps.get((tenant, class_name), ())
        return sum(gaps) / len(gaps) if len(gaps) >= MIN_GAPS else None

    def cheapest_hold_s(self, tenant: str, class_name: str, eviction_s: float) -> float | None:
        """Return how long to keep an idle program so that its gaps would have cost least.

        Args:
            tenant: The program's tenant.
            class_name: Its class.
            eviction_s: The time of keeping it that costs as much as its eviction.

        Returns:
            One of the gaps, with some slack; 0 to evict it at once; None if too few gaps were seen.
        """
        gaps = sorted(self._gaps.get((tenant, class_name), ()))
        if len(gaps) < MIN_GAPS:
            return None
        hold_s, least_s, waited_s = 0.0, eviction_s * len(gaps), 0.0
        for longer, gap_s in zip(reversed(range(len(gaps))), gaps, strict=True):
            waited_s += gap_s
            cost_s = waited_s + longer * (gap_s + eviction_s)
            if cost_s < least_s:
                hold_s, least_s = gap_s, cost_s
        return GAP_SLACK * hold_s


class IdleLimits:
    """The times for which idle programs of one engine stay active."""

    def __init__(self, capacity_tokens: float, longest_s: float, costs: ContextCosts) -> None:
        """Know no gaps yet.

        Args:
            capacity_tokens: What the contexts of active programs may fill.
            longest_s: The longest time for which any program without a call stays active.
            costs: The costs of contexts on the engine.
        """
        self.gaps = ClassGaps()
        self.longest_s = longest_s
        self._capacity_tokens = capacity_tokens
        self._costs = costs

    @property
    def fill_s(self) -> float:
        """The time in which the engine prefills all of the memory."""
        return self._costs.prefill_s(self._capacity_tokens)

    @property
    def hold_s(self) -> float:
        """The time for which a program is kept whose gaps are unknown."""
        return min(self.longest_s, self.fill_s)

    def of_class(self, tenant: str, class_name: str) -> float:
        """Return how long (s) a program of the class is kept that would be recomputed."""
        hold_s = self.gaps.cheapest_hold_s(tenant, class_name, self.fill_s)
        return self.hold_s if hold_s is None else min(self.longest_s, hold_s)

    def stated(self, return_s: float | None, retain_s: float | None) -> float | None:
        """Return how long (s) a program is kept by what its client states; None if it states nothing.

        Args:
            return_s: The time to its next call.
            retain_s: The longest time for which its context should be kept. It may be too long or a lie:
                none is kept for longer than one whose gaps are unknown.
        """
        if return_s is None and retain_s is None:
            return None
        is_beyond = return_s is not None and return_s > self.hold_s
        return 0.0 if is_beyond else self.hold_s if retain_s is None else min(retain_s, self.hold_s)

    def limits(self, contexts: ContextSet) -> Iterator[tuple[ProgramContext, float]]:
        """Yield the programs without a call, and how long (s) they are kept that would be recomputed."""
        limits_s: dict[tuple[str, str], float] = {}
        for context in [each for each in contexts.contexts.values() if not each.calls]:
            kind = (context.tenant, context.program.hints.class_name)
            if kind not in limits_s:
                limits_s[kind] = self.of_class(*kind)
            stated_s = self.stated(context.return_s, context.retain_s)
            yield context, limits_s[kind] if stated_s is None else stated_s

    def of_program(self, context: ProgramContext, limit_s: float) -> float:
        """Return how long (s) a program is kept, part of whose context may be loaded from host memory."""
        share, load_s = self._costs.load(context.program.program_id, context.length)
        return min(limit_s, (1.0 - share) * limit_s + load_s + LEAST_HOLD_S)
