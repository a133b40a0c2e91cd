"""The load of the last six hours, in memory of a fixed size: what the page's overview draws.

A sample every PERIOD_S holds the programs by state and the KV memory at that moment, and what the calls that
were settled since the sample before cost. Programs that ended are kept one by one, for exact percentiles.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autellix_backend.observe.settled_call import Outcome, SettledCall

PERIOD_S = 5.0
KEPT_S = 6 * 3600.0
SAMPLES = int(KEPT_S / PERIOD_S)
MAX_ENDS = 16_384
"""Programs that ended, the last ones: one every 1.3 s for six hours."""
MAX_BYTES = 3 * 2**20
"""The most memory of all of it: 0.5 MB of samples, and 112 bytes for each program that ended."""
PEAK_RANGE_S = 3600.0
"""Of the most programs that waited at once."""
LEAST_RANGE_S = 60.0
LATENCY_WINDOW_S = 60.0
"""Programs per minute and their percentiles are those of at least this time, up to each point."""
POINTS = 180
"""The most whole steps of a series; the first one has begun earlier."""


class Moment(NamedTuple):
    """The load at one moment; the shares are of the KV memory of all engines, NaN where none reports it."""

    waiting_for_memory: float
    """Programs."""
    waiting_for_slot: float
    in_engine: float
    at_another_gateway: float
    between_calls: float
    kv_held: float
    """Share held by calls in the engines."""
    kv_kept: float
    """Share kept for active programs beyond that."""
    kv_reserve: float
    """Share that no program may fill."""


class _Costs(NamedTuple):
    """What settled calls cost."""

    calls: float = 0.0
    failed_calls: float = 0.0
    """Without those that their clients gave up."""
    prompt_tokens: float = 0.0
    looked_up_tokens: float = 0.0
    """Prompt tokens of calls whose engine reported how many it found in its cache."""
    cached_tokens: float = 0.0
    output_tokens: float = 0.0
    preemptions: float = 0.0


_GAUGES, _COSTS = Moment._fields, _Costs._fields
_WIDTH = 1 + len(_GAUGES) + len(_COSTS)
_FAILURES = frozenset(Outcome) - {Outcome.OK, Outcome.ABORTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTotals:
    """The load of a whole range; unknown values are None."""

    programs: int
    """Programs that ended."""
    programs_per_minute: float | None
    latency_p50_s: float | None
    """Median time of the programs that ended, from the first arrival to the last answer."""
    latency_p95_s: float | None
    calls: int
    """Settled calls."""
    failed_calls: int
    """Calls that were not answered, without those that their clients gave up."""
    preemptions: int
    prompt_tokens_per_s: float | None
    """Tokens of settled calls over the range, or over the part of it with samples."""
    output_tokens_per_s: float | None
    cached_share: float | None
    """The share of prompt tokens found in the prefix cache, of engines that report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeries:
    """The load over time: one value for each of `times`, None where it is unknown."""

    step_s: float
    times: list[float]
    """The end of each step, in seconds since 1970."""
    values: dict[str, list[float | None]]
    """Means of the fields of a moment, rates of the costs per second or minute, and percentiles."""
    totals: LoadTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class PastWaits:
    """When programs waited, by the samples; times are in seconds since 1970."""

    was_used: bool
    """Whether a call was settled since the oldest sample."""
    began_at_s: float | None
    """The time of the oldest sample; None without samples."""
    last_at_s: float | None
    """When a program waited last; None if none has since the oldest sample."""
    most_programs: int
    """The most programs that waited at once in the last hour."""


class RecentLoad:
    """Records samples and ended programs, and returns them downsampled."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        """Start empty; `wall_clock` returns seconds since 1970."""
        self._wall_clock = wall_clock
        self._rows = array("d", [math.nan]) * (SAMPLES * _WIDTH)
        self._count = 0
        """Samples taken."""
        self._costs = [0.0] * len(_COSTS)
        self._ends: deque[tuple[float, float]] = deque(maxlen=MAX_ENDS)
        """When programs ended, and how long they took."""

    def on_call_settled(self, call: SettledCall) -> None:
        """Count a call."""
        usage, costs = call.answer_usage, self._costs
        costs[0] += 1
        costs[1] += call.outcome in _FAILURES
        if usage is not None:
            costs[2] += usage.prompt_tokens
            costs[3] += 0 if usage.cached_tokens is None else usage.prompt_tokens
            costs[4] += usage.cached_tokens or 0
            costs[5] += usage.output_tokens
        costs[6] += call.receipt.preemptions or 0

    def on_program_ended(self, ended_at_s: float, duration_s: float) -> None:
        """Count a program that ended (s since 1970), and its time from first arrival to last answer."""
        self._ends.append((ended_at_s, duration_s))

    def sample(self, moment: Moment) -> None:
        """Record a moment, and the costs since the one before."""
        at = (self._count % SAMPLES) * _WIDTH
        self._rows[at : at + _WIDTH] = array("d", (self._wall_clock(), *moment, *self._costs))
        self._costs = [0.0] * len(_COSTS)
        self._count += 1

    def series(self, range_s: float) -> LoadSeries:
        """Return the load of the last `range_s` seconds.

        It begins with the first sample or LEAST_RANGE_S ago: a new gateway's load fills the picture.
        """
        now_s, samples = self._wall_clock(), self._samples()
        if samples:
            range_s = min(range_s, max(LEAST_RANGE_S, now_s - samples[0][0] + PERIOD_S))
        step_s = max(PERIOD_S, range_s / POINTS)
        # Whole multiples, so that a step keeps its samples while the range moves on.
        first = math.floor((now_s - range_s) / step_s)
        last = math.floor(now_s / step_s)
        steps: list[list[Sequence[float]]] = [[] for _ in range(first, last + 1)]
        for row in samples:
            number = math.floor(row[0] / step_s) - first
            if 0 <= number < len(steps):
                steps[number].append(row)
        times = [(number + 1) * step_s for number in range(first, last + 1)]
        ends = list(self._ends)
        values = (
            _means(_without_holes(steps))
            | _rates(steps)
            | _latencies(times, ends, max(step_s, LATENCY_WINDOW_S))
        )
        rows = [row for step in steps for row in step]
        durations = [duration_s for ended_s, duration_s in ends if ended_s > now_s - range_s]
        return LoadSeries(step_s=step_s, times=times, values=values, totals=_totals(rows, durations))

    def waits(self) -> PastWaits:
        """Return when programs waited last, and how many at once."""
        rows, since_s = self._samples(), self._wall_clock() - PEAK_RANGE_S
        waits = [
            (row[0], row[_column("waiting_for_memory")] + row[_column("waiting_for_slot")]) for row in rows
        ]
        return PastWaits(
            was_used=bool(self._costs[0] or _sum(rows, "calls")),
            began_at_s=rows[0][0] if rows else None,
            last_at_s=max((at_s for at_s, programs in waits if programs), default=None),
            most_programs=round(max((programs for at_s, programs in waits if at_s > since_s), default=0)),
        )

    def _samples(self) -> list[Sequence[float]]:
        """Return the samples, the oldest first."""
        kept = min(self._count, SAMPLES)
        places = (number % SAMPLES * _WIDTH for number in range(self._count - kept, self._count))
        return [self._rows[at : at + _WIDTH] for at in places]


def _column(name: str) -> int:
    return 1 + (*_GAUGES, *_COSTS).index(name)


def _sum(rows: Sequence[Sequence[float]], name: str) -> float:
    place = _column(name)
    return math.fsum(row[place] for row in rows)


def _without_holes(steps: Sequence[list[Sequence[float]]]) -> list[list[Sequence[float]]]:
    """Return the steps, one without a sample between two that have some with those of the one before it.

    Samples come a little later each time, so that now and then a step of a sound gateway has none.
    """
    inner = range(1, len(steps) - 1)
    return [
        steps[number - 1] if not rows and number in inner and steps[number + 1] else rows
        for number, rows in enumerate(steps)
    ]


def _means(steps: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float | None]]:
    def mean(rows: Sequence[Sequence[float]], name: str) -> float | None:
        value = _sum(rows, name) / len(rows) if rows else math.nan
        return None if math.isnan(value) else value

    return {name: [mean(rows, name) for rows in steps] for name in _GAUGES}


def _rates(steps: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float | None]]:
    def rate(name: str, unit_s: float) -> list[float | None]:
        return [_sum(rows, name) / len(rows) * unit_s / PERIOD_S if rows else None for rows in steps]

    return {
        "prompt_tokens_per_s": rate("prompt_tokens", 1.0),
        "output_tokens_per_s": rate("output_tokens", 1.0),
        "cached_share": [_share(rows) for rows in steps],
        "failed_calls_per_minute": rate("failed_calls", 60.0),
        "preemptions_per_minute": rate("preemptions", 60.0),
    }


def _latencies(
    times: Sequence[float], ends: Sequence[tuple[float, float]], window_s: float
) -> dict[str, list[float | None]]:
    """Return programs per minute and percentiles of their durations in the window before each time."""
    per_minute: list[float | None] = []
    middles: list[float | None] = []
    highs: list[float | None] = []
    for time_s in times:
        low = bisect_left(ends, (time_s - window_s, math.inf))
        high = bisect_left(ends, (time_s, math.inf))
        durations = sorted(duration_s for _, duration_s in ends[low:high])
        per_minute.append(len(durations) * 60.0 / window_s)
        middles.append(quantile(durations, 0.5))
        highs.append(quantile(durations, 0.95))
    return {"programs_per_minute": per_minute, "latency_p50_s": middles, "latency_p95_s": highs}


def _totals(rows: Sequence[Sequence[float]], durations: list[float]) -> LoadTotals:
    covered_s = len(rows) * PERIOD_S

    def per_second(amount: float) -> float | None:
        return amount / covered_s if rows else None

    programs_per_s = per_second(len(durations))
    durations = sorted(durations)
    return LoadTotals(
        programs=len(durations),
        programs_per_minute=None if programs_per_s is None else 60.0 * programs_per_s,
        latency_p50_s=quantile(durations, 0.5),
        latency_p95_s=quantile(durations, 0.95),
        calls=round(_sum(rows, "calls")),
        failed_calls=round(_sum(rows, "failed_calls")),
        preemptions=round(_sum(rows, "preemptions")),
        prompt_tokens_per_s=per_second(_sum(rows, "prompt_tokens")),
        output_tokens_per_s=per_second(_sum(rows, "output_tokens")),
        cached_share=_share(rows),
    )


def _share(rows: Sequence[Sequence[float]]) -> float | None:
    looked_up_tokens = _sum(rows, "looked_up_tokens")
    return _sum(rows, "cached_tokens") / looked_up_tokens if looked_up_tokens else None


def quantile(values: Sequence[float], part: float) -> float | None:
    """Return a quantile of sorted values, interpolated; None without values."""
    if not values:
        return None
    place = part * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
