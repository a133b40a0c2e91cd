"""Measurements: the response time of programs, the spread of each tenant's sizes, and the cost of a token."""

from __future__ import annotations

import math
from collections import deque

from autellix_backend.core.recent import latest

WARM_UP_ENDS = 20
"""Ends of programs that are averaged evenly; from then on older ones fade."""
QUIET_SHARE = 0.5
"""The share of programs without a call that count as ended, at least: some clients announce no ends."""
FADING = 0.05
"""The weight of each further end: about the latest twenty count."""
SIZE_WINDOW = 256
"""The ended programs whose sizes count."""
PRIOR_PROGRAMS, PRIOR_SPREAD = 6, 0.7
"""A prior of a few programs of medium spread, so that the first ends do not decide alone."""
MAX_TENANTS = 128
"""Tenants whose sizes count; the one that had no program for the longest is forgotten first."""
KNOWN_PROGRAMS = 64
"""As many count for a spread that another table has measured."""
MIN_SAMPLES = 8
"""Samples that a measured price needs before it is known."""
SAMPLE_FADING = 0.98
"""The weight that a sample keeps after each further one: about the latest fifty count."""
_STEP_FADING = 0.999
"""The weight that a step keeps after each further one: about the latest thousand count."""


class SizeSpread:
    """The spread of the last sizes: the standard deviation of ln(work), with a prior around the same mean."""

    def __init__(self) -> None:
        self._known: float | None = None
        self._value: float | None = None
        """The last value; None once it is out of date."""
        self._sizes: deque[float] = deque()
        self._sum = 0.0
        self._squares = 0.0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def known(self) -> float | None:
        """The spread as another table has measured it, which takes the place of the prior."""
        return self._known

    @known.setter
    def known(self, spread: float | None) -> None:
        self._known, self._value = spread, None

    def add(self, work: float) -> None:
        """Add the work of an ended program; a program without any has no size."""
        if work <= 0:
            return
        self._value = None
        size = math.log(work)
        self._sizes.append(size)
        self._sum += size
        self._squares += size * size
        if len(self._sizes) > SIZE_WINDOW:
            oldest = self._sizes.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest

    @property
    def value(self) -> float:
        """The standard deviation."""
        if self._value is None:
            self._value = self._measured()
        return self._value

    def _measured(self) -> float:
        count = len(self._sizes)
        deviations = self._squares - self._sum * self._sum / count if count else 0.0
        programs, spread = PRIOR_PROGRAMS, PRIOR_SPREAD
        if self.known is not None:
            programs, spread = KNOWN_PROGRAMS, self.known
        return math.sqrt((programs * spread**2 + max(0.0, deviations)) / (programs + count))


class ProgramStatistics:
    """Counts live programs, and learns from each end; `now` never decreases."""

    def __init__(self) -> None:
        self.begun = 0
        """Programs that have appeared."""
        self.live = 0
        """Programs with active calls."""
        self.sizes: dict[str, SizeSpread] = {}
        """Sizes of ended programs, by tenant: tenants do not inform each other."""
        self._now_s = 0.0
        self._busy_s = 0.0
        """Time in which any program was live: an idle night is no part of the time between two ends."""
        self._ends = 0
        self._last_end_s = 0.0
        """Busy time (s) at the end of the last program."""
        self._ends_together = 0
        """Programs that have ended at that moment."""
        self._interval_s = 0.0
        """The time between that moment and the end before it."""
        self._mean_before_s = 0.0
        self._between_ends_s = 0.0

    def sizes_of(self, tenant: str) -> SizeSpread:
        """Return the sizes of a tenant that has programs."""
        return latest(self.sizes, tenant, SizeSpread, MAX_TENANTS)

    @property
    def spread(self) -> float:
        """The largest spread of a tenant's sizes."""
        return max((sizes.value for sizes in self.sizes.values()), default=PRIOR_SPREAD)

    def on_live(self, now: float) -> None:
        """Count a program that has its first active call."""
        self._advance(now)
        self.live += 1

    def on_idle(self, now: float) -> None:
        """Count a program whose last active call has left."""
        self._advance(now)
        self.live -= 1

    def on_ended(self, work: float, now: float, tenant: str = "") -> None:
        """Learn from a tenant's program that is over; its work is in prompt tokens."""
        self._advance(now)
        self._ends += 1
        self._count_end()
        self.sizes_of(tenant).add(work)

    @property
    def response_s(self) -> float:
        """The mean time (s) in which a program is live (Little's law: live ones times time between ends)."""
        # Without it, R would grow without bound where no ends are announced, and the boost with it.
        quiet = QUIET_SHARE * (self.begun - self.live)
        if self._ends < max(WARM_UP_ENDS, quiet):
            # Until enough have ended, the time so far counts as one more interval.
            return self.live * self._busy_s / max(self._ends + 1, quiet)
        return self.live * self._between_ends_s

    def _advance(self, now: float) -> None:
        if self.live:
            self._busy_s += now - self._now_s
        self._now_s = now

    def _count_end(self) -> None:
        """Average the time between ends; those at one moment, as by a time-out, share their interval."""
        if self._ends_together and self._busy_s == self._last_end_s:
            self._ends_together += 1
        else:
            self._ends_together, self._mean_before_s = 1, self._between_ends_s
            self._interval_s = self._busy_s - self._last_end_s
            self._last_end_s = self._busy_s
        together = self._ends_together
        kept = (1 - FADING) ** together if self._ends > WARM_UP_ENDS else 1 - together / self._ends
        self._between_ends_s = kept * self._mean_before_s + (1 - kept) * self._interval_s / together


class _Mean:
    """A mean in which old samples fade."""

    def __init__(self) -> None:
        self.samples = 0
        self.value = 0.0
        self._weight = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a sample that was made several times."""
        self.samples += times
        kept = SAMPLE_FADING**times
        added = (1.0 - kept) / (1.0 - SAMPLE_FADING)
        self._weight = self._weight * kept + added
        self.value += (value - self.value) * added / self._weight


class PrefillCost:
    """The time that a token of a prompt adds to a step: what prefilling costs, and recomputing a context.

    No line is fitted: under load all prefill steps are equally full, and pure decode steps may lie far in the
    past. The steps would have run anyway, so a step with prefill is compared to one without.
    """

    def __init__(self) -> None:
        self._decode_s = _Mean()
        self._prefill_s = _Mean()
        self._tokens = _Mean()

    def observe(self, prefilled: int, seconds: float, steps: int = 1) -> None:
        """Add equal steps: the prompt tokens of one, zero for a pure decode step, and its duration (s)."""
        if not prefilled:
            self._decode_s.observe(seconds, steps)
            return
        self._prefill_s.observe(seconds, steps)
        self._tokens.observe(prefilled, steps)

    @property
    def token_s(self) -> float | None:
        """Seconds per token; None after too few prefill steps, or where they take no longer."""
        if self._tokens.samples < MIN_SAMPLES:
            return None
        added_s = self._prefill_s.value - self._decode_s.value
        return added_s / self._tokens.value if added_s > 0 else None


class TokenCost:
    """Engine seconds of one token of work, learned from steps in which old ones fade."""

    def __init__(self, prior_s: float) -> None:
        self._prior_s = prior_s
        self._seconds = 0.0
        self._tokens = 0.0

    def observe(self, work: float, seconds: float, steps: int = 1) -> None:
        """Add equal steps: the work of one, and its duration (s). Steps without work teach nothing."""
        if work <= 0:
            return
        kept = _STEP_FADING**steps
        counted = (1 - kept) / (1 - _STEP_FADING)
        self._seconds = self._seconds * kept + seconds * counted
        self._tokens = self._tokens * kept + work * counted

    @property
    def seconds(self) -> float:
        """Engine seconds of one token of work: its share of the step that computed it."""
        return self._seconds / self._tokens if self._tokens else self._prior_s
