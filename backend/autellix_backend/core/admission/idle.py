"""How long a program without a call keeps its share of KV memory while others wait for memory.

Keeping its context withholds its share of memory, and with it that share of the engine's time; evicting it
costs its prefill. Both are in proportion to its tokens, so they are equal after the time in which the engine
prefills all of that memory. Evicting it then costs at most twice what the best choice would (the "ski rental"
rule: Karlin et al., "Competitive Snoopy Caching", Algorithmica 1988). A class of programs whose gaps between
calls are known to be longer gets more time, within a bound.

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
GAP_QUANTILE = 0.95
MAX_CLASSES = 256
MAX_HOLDS = 4.0
"""Idle programs of classes with long gaps stay active for this multiple of the time to prefill all memory."""
LEAST_HOLD_S = 0.1
"""Idle programs stay active at least so long: many clients only pass an answer on to the next call."""


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

    def long_gap_s(self, tenant: str, class_name: str) -> float | None:
        """Return a gap that few exceed; None if too few were seen."""
        gaps = self._gaps.get((tenant, class_name), ())
        return sorted(gaps)[int(GAP_QUANTILE * len(gaps))] if len(gaps) >= MIN_GAPS else None


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
    def hold_s(self) -> float:
        """The time in which the engine prefills all of the memory."""
        return self._costs.prefill_s(self._capacity_tokens)

    @property
    def least_s(self) -> float:
        """A time for which every idle program is kept."""
        return min(self.longest_s, self.hold_s)

    def of_class(self, tenant: str, class_name: str) -> float:
        """Return how long (s) a program of the class is kept that would be recomputed."""
        hold_s = self.hold_s
        gap_s = self.gaps.long_gap_s(tenant, class_name)
        most_s = MAX_HOLDS * hold_s
        return min(self.longest_s, most_s if gap_s is None else max(hold_s, min(gap_s, most_s)))

    def longer(
        self, now: float, least_s: float, contexts: ContextSet
    ) -> Iterator[tuple[ProgramContext, float]]:
        """Yield the programs without a call for longer than this, and the most that their classes may be."""
        limits_s: dict[tuple[str, str], float] = {}
        for context in [each for each in contexts.contexts.values() if not each.calls]:
            if now - context.since_s > least_s:
                kind = (context.tenant, context.program.class_name)
                if kind not in limits_s:
                    limits_s[kind] = self.of_class(*kind)
                yield context, limits_s[kind]

    def of_program(self, context: ProgramContext, class_limit_s: float) -> float:
        """Return how long (s) a program is kept, part of whose context may be loaded from host memory."""
        share, load_s = self._costs.load(context.program.program_id, context.length)
        return min(class_limit_s, (1.0 - share) * class_limit_s + load_s + LEAST_HOLD_S)
