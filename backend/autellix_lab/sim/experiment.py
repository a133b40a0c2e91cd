"""Sweeps over policies, offered loads and seeds; each run is a simulation of its own.

The offered load rho is the work that arrives per second over the capacity of the engines with full batches
and a perfect prefix cache. An engine with a smaller cache saturates at a lower load. Runs that differ only in
the policy have the same programs and arrivals.
"""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import TypeVar

from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import Arrivals, SimSettings, simulate_bursts, simulate_closed
from autellix_lab.workload.arrivals import ARRIVAL_KINDS, cut_bursts, draw_arrivals
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.statistics import Interval, confidence_interval, jain_index, statistics_of
from autellix_lab.workload.trace import ProgramTrace

Job = TypeVar("Job")
Found = TypeVar("Found")
Metrics = dict[str, float]
"""Numbers of one run by name, such as `token_latency_s.mean`."""
SIM_ARRIVALS = (*ARRIVAL_KINDS, "burst_idle")
"""`burst_idle` plays Poisson arrivals in bursts, each of which waits for the end of the one before.

So latencies at a load above 1 depend on the length of a burst, and not on that of the run.
"""
CLOSED = "closed"
"""Arrivals of sweeps in a closed loop: a load is the number of programs that are always present."""
BURST_PROGRAMS = 50
"""Programs of one burst."""
COMPARED = ("token_latency_s.mean", "latency_s.mean", "latency_s.p95", "latency_s.p99")
"""The paper's metric, and the mean and tail of what a person waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The runs of a sweep."""

    programs: Sequence[ProgramTrace]
    """The pool from which each seed picks its programs."""
    count: int
    """Programs of one run."""
    cases: Mapping[str, SimSettings]
    """Settings by label, such as the policy's name; the first ones define a load of 1."""
    loads: Sequence[float]
    seeds: Sequence[int]
    arrivals: str = "poisson"
    """One of SIM_ARRIVALS, or CLOSED."""
    burst: int = BURST_PROGRAMS
    """Programs of one burst, for `burst_idle`."""
    rate_per_s: float | None = None
    """Programs per second at a load of 1; None for those that drain_rate_per_s() returns."""

    @property
    def runs(self) -> int:
        """The number of simulations."""
        return len(self.cases) * len(self.loads) * len(self.seeds)


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    case: str
    load: float
    seed: int
    rate_per_s: float
    """Programs per second; 0 in a closed loop."""
    metrics: Metrics


@dataclass(slots=True)
class SweepResult:
    """All runs of a sweep, in a fixed order."""

    points: list[Point] = field(default_factory=list)

    @property
    def loads(self) -> list[float]:
        """The offered loads, in rising order."""
        return sorted({point.load for point in self.points})

    @property
    def cases(self) -> list[str]:
        """The cases, in the sweep's order."""
        return list(dict.fromkeys(point.case for point in self.points))

    def values(self, case: str, load: float, metric: str) -> list[float]:
        """Return a metric of one case and load, by seed."""
        return [p.metrics[metric] for p in self.points if (p.case, p.load) == (case, load)]

    def interval(self, case: str, load: float, metric: str) -> Interval:
        """Return a metric's mean over the seeds with its 95 % confidence interval."""
        return confidence_interval(self.values(case, load, metric))

    def ratio(self, case: str, baseline: str, load: float, metric: str) -> Interval:
        """Return the mean, over the seeds, of a metric's ratio to the baseline's run of the same seed."""
        pairs = zip(self.values(case, load, metric), self.values(baseline, load, metric), strict=True)
        return confidence_interval([value / base if base else 1.0 for value, base in pairs])


def pick(programs: Sequence[ProgramTrace], count: int, seed: int) -> list[ProgramTrace]:
    """Draw programs without repetition until the pool is empty, then start over with the whole pool."""
    rng = random.Random(f"pick:{seed}")
    picked: list[ProgramTrace] = []
    while len(picked) < count:
        picked += rng.sample(list(programs), min(len(programs), count - len(picked)))
    return picked


def draw_bursts(
    kind: str, programs: Sequence[ProgramTrace], rate_per_s: float, seed: int, burst: int = BURST_PROGRAMS
) -> list[Arrivals]:
    """Draw the programs' arrivals by one of SIM_ARRIVALS: one burst, or as many as `burst_idle` needs."""
    if kind != "burst_idle":
        return [list(zip(draw_arrivals(kind, len(programs), rate_per_s, seed), programs, strict=True))]
    bursts = cut_bursts(draw_arrivals("poisson", len(programs), rate_per_s, seed), burst)
    remaining = iter(programs)
    return [[(time_s, next(remaining)) for time_s in times_s] for times_s in bursts]


def drain_rate_per_s(programs: Sequence[ProgramTrace], settings: SimSettings) -> float:
    """Return the programs per second that full batches finish with a perfect prefix cache.

    Where programs share system prefixes, each prefix is computed once, by the first program that has it.
    """
    model = settings.model
    work_s = sum(
        model.call_work_s(call.new_tokens, max(1, call.decode_tokens), call.prefill_tokens)
        for program in programs
        for call in program.calls
    )
    if settings.shares_prefixes:
        work_s -= _repeated_prefix_tokens(programs) * model.prefill_s
    speed = sum(settings.engine_speeds) if settings.engine_speeds else settings.engines
    return speed * len(programs) / work_s


def _repeated_prefix_tokens(programs: Iterable[ProgramTrace]) -> int:
    """Return the tokens of the system prefixes that an earlier program has."""
    seen: set[str] = set()
    tokens = 0
    for program in programs:
        prefix = system_prefix(program)
        if prefix is None:
            continue
        tokens += prefix.length if prefix.key in seen else 0
        seen.add(prefix.key)
    return tokens


def measure(result: SimResult) -> Metrics:
    """Reduce a run to its metrics.

    Utilisation and shares lie between 0 and 1; only `recomputed_share` may exceed 1 where memory thrashes.
    Of a run's prompt tokens, it prefilled 1 - `cached_share` + `recomputed_share`; `loaded_share` is
    a part of `cached_share`. Closed loops alone have `calls_per_min` and `programs_per_min`.
    """
    programs = result.programs
    metrics: Metrics = {}
    columns = {
        "token_latency_s": [record.token_latency_s for record in programs],
        "latency_s": [record.latency_s for record in programs],
        "wait_s": [record.wait_s for record in programs],
        "service_s": [record.service_s for record in programs],
    }
    for name, values in columns.items():
        metrics |= {f"{name}.{key}": value for key, value in statistics_of(values).items()}
    calls = sum(record.calls for record in programs)
    prompt_tokens = sum(record.prompt_tokens for record in programs)
    busy_s = sum(engine.busy_s for engine in result.engines)
    swaps = sum(engine.swaps for engine in result.engines)
    if result.full_loop is not None:
        minutes = result.full_loop.seconds / 60
        metrics["calls_per_min"] = result.full_loop.calls / minutes
        metrics["programs_per_min"] = result.full_loop.programs / minutes
    return metrics | {
        "makespan_s": result.makespan_s,
        "programs_per_s": len(programs) / result.makespan_s,
        "tokens_per_s": sum(record.output_tokens for record in programs) / result.makespan_s,
        "utilisation": busy_s / (len(result.engines) * result.makespan_s),
        "preemptions_per_call": sum(engine.preemptions for engine in result.engines) / calls,
        "blocks_per_swap": sum(engine.swapped_blocks for engine in result.engines) / swaps if swaps else 0.0,
        "swap_share": sum(engine.swap_s for engine in result.engines) / busy_s,
        "cached_share": sum(record.cached_tokens for record in programs) / prompt_tokens,
        "loaded_share": sum(record.loaded_tokens for record in programs) / prompt_tokens,
        "recomputed_share": sum(record.recomputed_tokens for record in programs) / prompt_tokens,
        "jain": jain_index(columns["token_latency_s"]),
        "peak_programs": float(result.peak_programs),
    }


def run_sweep(
    sweep: Sweep, *, workers: int = 1, on_point: Callable[[Point], None] | None = None
) -> SweepResult:
    """Run a sweep in `workers` processes; `on_point` receives each run as it ends."""
    jobs = [(sweep, seed, load) for seed in sweep.seeds for load in sweep.loads]
    points: list[Point] = []
    for found in in_processes(_run_load, jobs, workers):
        points += found
        for point in found:
            if on_point is not None:
                on_point(point)
    order = {case: index for index, case in enumerate(sweep.cases)}
    points.sort(key=lambda point: (point.load, order[point.case], point.seed))
    return SweepResult(points)


def interval_mapping(interval: Interval | None) -> dict[str, float | None] | None:
    """Return an interval as plain JSON values, which have no infinity."""
    if interval is None:
        return None
    half_width = interval.half_width if math.isfinite(interval.half_width) else None
    return {"mean": interval.mean, "half_width": half_width}


def summarise_runs(result: SweepResult, metrics: Sequence[str]) -> list[dict[str, object]]:
    """Return one row per load and case: each metric's mean and half width (None for one seed)."""
    rows: list[dict[str, object]] = []
    for load, case in dict.fromkeys((point.load, point.case) for point in result.points):
        row: dict[str, object] = {"load": load, "case": case}
        for metric in metrics:
            row[metric] = interval_mapping(result.interval(case, load, metric))
        rows.append(row)
    return rows


def in_processes(work: Callable[[Job], Found], jobs: Iterable[Job], workers: int) -> Iterator[Found]:
    """Do a piece of work for each job, and yield the results as they come; one worker is this process."""
    if workers == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, job) for job in jobs]):
            yield future.result()


def _run_load(job: tuple[Sweep, int, float]) -> list[Point]:
    """Run all cases of one seed and load: they share programs and arrivals."""
    sweep, seed, load = job
    programs = pick(sweep.programs, sweep.count, seed)
    first = next(iter(sweep.cases.values()))
    is_closed = sweep.arrivals == CLOSED
    rate_per_s = 0.0 if is_closed else load * (sweep.rate_per_s or drain_rate_per_s(programs, first))
    bursts = [] if is_closed else draw_bursts(sweep.arrivals, programs, rate_per_s, seed, sweep.burst)
    points = []
    for case, settings in sweep.cases.items():
        chosen = replace(settings, seed=seed)
        result = (
            simulate_closed(programs, round(load), chosen) if is_closed else simulate_bursts(bursts, chosen)
        )
        points.append(Point(case, load, seed, rate_per_s, measure(result)))
    return points
