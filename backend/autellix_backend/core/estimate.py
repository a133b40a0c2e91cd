"""The service that a program may still need, from hints of its client or finished programs of its class.

The class's estimate is the Gittins index over its finished programs (Gittins 1979; for queues see Aalto,
Ayesta and Righter, "On the Gittins index in the M/G/1 queue", 2009): with X the total service of a program
of the class and `a` what this one has attained, the least over d > 0 of

    E[min(X - a, d) | X > a] / P(X - a <= d | X > a)

in seconds. For programs of equal size that is the remainder; for heavy tails it grows with `a`.

Tenants share nothing here: the programs of one neither inform the estimates for another nor displace its
classes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.recent import latest

HISTORY_PROGRAMS = 256
"""Finished programs that a class remembers; the oldest are forgotten first."""
MAX_CLASSES = 256
"""Classes of one tenant that are remembered; the one not seen for the longest is forgotten first."""
LEAST_PROGRAMS = 30
"""Finished programs that a class needs before it predicts anything."""


@dataclass(slots=True)
class _Rate:
    """Seconds of service per unit of work, over all that was seen."""

    service_s: float = 0.0
    units: float = 0.0

    def add(self, service_s: float, units: float) -> None:
        self.service_s += service_s
        self.units += units

    def value(self) -> float | None:
        return self.service_s / self.units if self.units else None


@dataclass(slots=True)
class _Class:
    totals: deque[float] = field(default_factory=deque)
    """Totals of finished programs in order of their end."""
    ordered: list[float] = field(default_factory=list)
    per_call: _Rate = field(default_factory=_Rate)
    per_token: _Rate = field(default_factory=_Rate)

    def add(self, total_s: float) -> None:
        if len(self.totals) == HISTORY_PROGRAMS:
            oldest = self.totals.popleft()
            del self.ordered[bisect_right(self.ordered, oldest) - 1]
        self.totals.append(total_s)
        insort(self.ordered, total_s)


class _TenantClasses:
    """The classes of one tenant, the one not seen for the longest first."""

    def __init__(self) -> None:
        self.all = _Class()
        self._classes: dict[str, _Class] = {}

    def find(self, name: str) -> _Class | None:
        return self._classes.get(name)

    def get(self, name: str) -> _Class:
        """Return the class of a name, which may be new."""
        return latest(self._classes, name, _Class, MAX_CLASSES)

    def hinted(self, name: str, hints: Hints) -> float | None:
        group = self._classes.get(name, self.all)
        if hints.expected_tokens is not None:
            per_token_s = group.per_token.value() or self.all.per_token.value()
            return None if per_token_s is None else hints.expected_tokens * per_token_s
        if hints.expected_calls is not None:
            per_call_s = group.per_call.value() or self.all.per_call.value()
            return None if per_call_s is None else hints.expected_calls * per_call_s
        return None


class SizeEstimator:
    """Learns from calls and programs as they finish; one class per tenant and program name."""

    def __init__(self) -> None:
        self._tenants: dict[str, _TenantClasses] = {}

    def observe_call(self, tenant: str, name: str, service_s: float, output_tokens: int) -> None:
        """Learn what a finished call of a program of this name cost."""
        classes = self._of(tenant)
        for group in (classes.get(name), classes.all):
            group.per_call.add(service_s, 1)
            group.per_token.add(service_s, output_tokens)

    def observe_program(self, tenant: str, name: str, service_s: float) -> None:
        """Learn what a finished program of this name cost in all."""
        self._of(tenant).get(name).add(service_s)

    def expect(self, tenant: str, name: str, attained_s: float, hints: Hints = NO_HINTS) -> float | None:
        """Return the service (s) that a program is expected to need still, or None if nothing is known.

        Args:
            tenant: The program's tenant.
            name: Its class.
            attained_s: The service (s) that it has received.
            hints: Its client's own expectation, which takes precedence over the class's.
        """
        classes = self._tenants.get(tenant)
        if classes is None:
            return None
        hinted_s = classes.hinted(name, hints)
        if hinted_s is not None:
            return hinted_s
        group = classes.find(name)
        if group is None or len(group.ordered) < LEAST_PROGRAMS:
            return None
        return gittins_index(group.ordered, attained_s)

    def _of(self, tenant: str) -> _TenantClasses:
        return self._tenants.setdefault(tenant, _TenantClasses())


def gittins_index(ordered_totals_s: list[float], attained_s: float) -> float | None:
    """Return the Gittins index (s) of a program among others of known totals, in rising order.

    None if all of them were done with less than this one has attained. Cost: the number of larger totals.
    """
    first = bisect_right(ordered_totals_s, attained_s)
    larger = len(ordered_totals_s) - first
    spent_s, best_s = 0.0, None
    for done, total_s in enumerate(ordered_totals_s[first:], start=1):
        # Serving each of them for d = total - a: `done` of them finish, the others receive d.
        remainder_s = total_s - attained_s
        spent_s += remainder_s
        index_s = (spent_s + (larger - done) * remainder_s) / done
        if best_s is None or index_s < best_s:
            best_s = index_s
    return best_s
