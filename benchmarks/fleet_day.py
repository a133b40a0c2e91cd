"""Simulates a day of a fleet that scales from two to eight engines by one of several signals.

    fleet_day.py DATA [--out fleet-day]
    fleet_day.py DATA --fleets saturation:0.65 utilisation:0.8

DATA/public has the programs, DATA/arrivals recorded arrivals of one hour. Some of these, drawn by the seed,
are stretched to a day whose hourly rates are HOURLY, an assumption: nights of a sixth of the peak, and a rise
from 6 to 9. Every fleet follows the rule of Kubernetes' autoscaler (`autellix_lab.sim.fleet`):

    saturation   autellix_engine_saturation, the product's own function
    waiting      calls that wait, as vllm:num_requests_waiting
    utilisation  share of time in which an engine computes, as DCGM shows it
    known        the rate of arrivals two and a half minutes later, over that which saturates an engine
    fixed        always as many

Of each signal the target is chosen on seed 0: the fewest engine-hours with a mean latency within a tenth of
that of eight engines, else the least latency. The other seeds judge. Runs go to OUT/runs.jsonl, one line
each, and are not repeated. With --fleets only these are run, on seed 0.

The need is the saturation of the eight engines on the same day, so a fleet above it has slack.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from autellix_backend.core.balance import bounded
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import pick
from autellix_lab.sim.fleet import FleetMoment, Scaling, Signal, saturation, utilisation, waiting
from autellix_lab.sim.markdown import markdown_table
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.recorded import load_programs
from autellix_lab.sim.results import ProgramRecord, SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.fit import Fit, GapRule

HOURLY = (
    *(0.20, 0.17, 0.15, 0.15, 0.17, 0.22, 0.35, 0.60),
    *(0.90, 1.00, 1.00, 0.95, 0.80, 0.90, 1.00, 1.00),
    *(0.95, 0.85, 0.65, 0.50, 0.42, 0.36, 0.30, 0.25),
)
"""The rate of each hour over that of the busiest."""
LEAST, MOST = 2, 8
START_S, WINDOW_S, PERIOD_S = 120.0, 60.0, 15.0
PEAK_ENGINES = 6.0
"""The rate of the busiest hour over that which saturates an engine."""
TUNED_ON, JUDGED_ON = 0, (1, 2)
MARGINS, MOVES_ON = (0.0, 0.3, 1.0), (1, 2)
SLACK = 1.1
TARGETS: Mapping[str, tuple[float, ...]] = {
    "saturation": (0.5, 0.65, 0.8, 0.95),
    "waiting": (0.25, 0.35, 0.5),
    "utilisation": (0.5, 0.65, 0.8, 0.95),
    "known": (0.85, 1.0),
    "fixed": (6.0, 7.0, 8.0),
}
MEASURED: Mapping[str, Signal] = {"saturation": saturation, "waiting": waiting, "utilisation": utilisation}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayWorkload:
    """Programs and the engine that serves them."""

    pool: str
    fit: Fit
    model: EngineModel
    engine_rate_per_s: float
    """Programs per second that saturate an engine."""
    arrivals: str
    hours: float = 6.0
    """The length of the day."""


WORKLOADS = {
    "coding": DayWorkload(
        pool="coding",
        fit=Fit(max_context_tokens=131_072, gap_rule=GapRule(60.0)),
        model=PRESETS["llama3.1-70b-4xa100"],
        engine_rate_per_s=0.0018,
        arrivals="azure_llm_2023_conv",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCase:
    """One fleet on one day."""

    workload: str
    signal: str
    target: float
    """Of `fixed`, the number of engines."""
    seed: int
    margin: float = bounded.MARGIN
    """Of the balancer: 0 moves a program wherever a call costs less, 1 only when its engine leaves."""
    announces: bool = True
    """Whether clients announce the ends of their programs."""


def day_times(unit_times: Sequence[float], hours: float) -> list[float]:
    """Return the arrivals (s) of a day of this many hours, by HOURLY, of steady ones between 0 and 1."""
    edges = [0.0, *accumulate(HOURLY)]
    hour_s = hours * 3600 / len(HOURLY)
    times = []
    for unit in unit_times:
        area = unit * edges[-1]
        hour = min(bisect_right(edges, area) - 1, len(HOURLY) - 1)
        times.append((hour + (area - edges[hour]) / HOURLY[hour]) * hour_s)
    return times


def day_rate(now: float, hours: float) -> float:
    """Return the rate over that of the busiest hour."""
    return HOURLY[int(now / (hours * 3600) * len(HOURLY)) % len(HOURLY)]


def read_times(path: Path) -> list[float]:
    """Read recorded arrivals (s)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [float(row["t_s"]) for row in csv.DictReader(file)]


def scaling_of(case: DayCase, hours: float) -> Scaling:
    """Return how the fleet of a case scales."""

    def known(now: float, _: object) -> dict[str, float]:
        # Ahead by the start, and by half of the time over which signals are averaged.
        return {"": PEAK_ENGINES * day_rate(now + START_S + WINDOW_S / 2, hours)}

    signal, target, least, most = MEASURED.get(case.signal, known), case.target, LEAST, MOST
    if case.signal == "fixed":
        target, least, most = 1.0, int(case.target), int(case.target)
    return Scaling(
        signal=signal,
        target=target,
        least=least,
        most=most,
        start_s=START_S,
        window_s=WINDOW_S,
        period_s=PERIOD_S,
    )


def play(data: Path, case: DayCase, hours: float | None = None) -> SimResult:
    """Simulate a day."""
    workload = WORKLOADS[case.workload]
    hours = workload.hours if hours is None else hours
    rate_per_s = PEAK_ENGINES * workload.engine_rate_per_s * fmean(HOURLY)
    number = round(rate_per_s * hours * 3600)
    programs = pick(load_programs(data, workload.pool, {workload.pool: workload.fit}), number, case.seed)
    recorded = read_times(data / "arrivals" / f"{workload.arrivals}.csv.gz")
    drawn = sorted(random.Random(case.seed).sample(recorded, number))
    times = day_times([time / recorded[-1] for time in drawn], hours)
    scaling = scaling_of(case, hours)
    # A constant of the balancer.
    bounded.MARGIN = case.margin
    settings = SimSettings(
        model=workload.model,
        scheduler=SchedulerConfig(),
        engines=scaling.least,
        scaling=scaling,
        end_delay_s=0.0 if case.announces else None,
        idle_s=600.0,
    )
    return simulate(zip(times, programs, strict=True), settings)


def figures_of(programs: Sequence[ProgramRecord], moments: Sequence[FleetMoment]) -> dict[str, float]:
    """Return the figures of a day."""
    latencies = [program.latency_s for program in programs]
    calls = sum(program.calls for program in programs)
    prompt_tokens = sum(program.prompt_tokens for program in programs)
    engine_hours = sum(
        moment.engines * (following.now - moment.now) for moment, following in pairwise(moments)
    )
    numbers = [moment.accepting + moment.starting for moment in moments]
    return {
        "programs": float(len(programs)),
        "latency_s.mean": fmean(latencies),
        "latency_s.p95": quantiles(latencies, n=20, method="inclusive")[-1],
        "wait_s.mean": fmean(program.wait_s for program in programs),
        "engine_hours": engine_hours / 3600,
        "changes": float(sum(before != after for before, after in pairwise(numbers))),
        "moved_programs": sum(bool(each.moves + each.forced_moves) for each in programs) / len(programs),
        "moves_per_call": sum(program.moves for program in programs) / calls,
        "returns_per_call": sum(program.returns for program in programs) / calls,
        "forced_moves": float(sum(program.forced_moves for program in programs)),
        "most_moves": float(max(program.moves for program in programs)),
        "moved_token_share": sum(program.moved_tokens for program in programs) / prompt_tokens,
        "computed_share": 1 - sum(program.cached_tokens for program in programs) / prompt_tokens,
    }


def hourly_of(moments: Sequence[FleetMoment], hours: float) -> list[dict[str, float]]:
    """Return the means of each twelfth of the day."""
    part_s = hours * 3600 / 12
    parts = [[moment for moment in moments if moment.now // part_s == part] for part in range(12)]
    return [
        {
            name: fmean(getattr(moment, name) for moment in part)
            for name in ("engines", "accepting", "programs", "waiting", "saturation")
        }
        for part in parts
        if part
    ]


class DayRuns:
    """Runs by case, and the file in which they are."""

    def __init__(self, path: Path) -> None:
        """Read the runs that the file has, if it exists."""
        self.found: dict[DayCase, dict[str, Any]] = {}
        self._path = path
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                fields = json.loads(line)
                self.found[DayCase(**fields.pop("case"))] = fields

    def make(self, data: Path, case: DayCase) -> dict[str, Any]:
        """Return the run of a case."""
        if case not in self.found:
            result, hours = play(data, case), WORKLOADS[case.workload].hours
            run: dict[str, Any] = {
                "figures": figures_of(result.programs, result.fleet),
                "parts": hourly_of(result.fleet, hours),
                "engines": [moment.engines for moment in result.fleet],
                "saturation": [moment.saturation for moment in result.fleet],
                "accepting": [moment.accepting for moment in result.fleet],
            }
            self.found[case] = run
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": asdict(case), **run}) + "\n")
            shown = " ".join(f"{name}={value:.4g}" for name, value in run["figures"].items())
            print(f"# {case}: {shown}", flush=True)
        return self.found[case]


def chosen_target(runs: Mapping[float, Mapping[str, float]], reference_s: float) -> float:
    """Return the target with the fewest engine-hours within SLACK of a latency, else the least latency."""
    within = [target for target, figures in runs.items() if figures["latency_s.mean"] <= SLACK * reference_s]
    if within:
        return min(within, key=lambda target: runs[target]["engine_hours"])
    return min(runs, key=lambda target: runs[target]["latency_s.mean"])


def need_of(saturations: Sequence[float]) -> list[int]:
    """Return the engines that a day needs, by the saturation of a fleet that has enough: a minute's mean."""
    window = round(WINDOW_S / PERIOD_S)
    means = (fmean(saturations[max(0, end - window) : end]) for end in range(1, len(saturations) + 1))
    return [min(max(LEAST, math.ceil(mean)), MOST) for mean in means]


def difference_hours(
    engines: Sequence[float], need: Sequence[float], period_s: float = PERIOD_S
) -> tuple[float, float]:
    """Return the engine-hours above and below the need."""
    pairs = [one - other for one, other in zip(engines, need, strict=False)]
    above = sum(max(0.0, pair) for pair in pairs) * period_s / 3600
    return above, sum(max(0.0, -pair) for pair in pairs) * period_s / 3600


def lead_minutes(
    accepting: Sequence[float], need: Sequence[float], engines: int, period_s: float = PERIOD_S
) -> float:
    """Return how long before so many engines are needed there are as many; minus infinity if never."""
    first = next((at for at, number in enumerate(accepting) if number >= engines), math.inf)
    needed = next((at for at, number in enumerate(need) if number >= engines), math.inf)
    return (needed - first) * period_s / 60


def tune(data: Path, runs: DayRuns, workload: str) -> dict[str, float]:
    """Return the target of each signal."""
    base = DayCase(workload=workload, signal="fixed", target=float(MOST), seed=TUNED_ON)
    reference_s = runs.make(data, base)["figures"]["latency_s.mean"]
    return {
        signal: chosen_target(
            {
                target: runs.make(data, replace(base, signal=signal, target=target))["figures"]
                for target in targets
            },
            reference_s,
        )
        for signal, targets in TARGETS.items()
    }


def day_rows(data: Path, runs: DayRuns, workload: str, targets: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield the row of each fleet: means over the seeds that judge."""
    for signal, target in [*targets.items(), ("fixed", float(MOST))]:
        found, others = [], []
        for seed in JUDGED_ON:
            case = DayCase(workload=workload, signal=signal, target=target, seed=seed)
            run = runs.make(data, case)
            need = need_of(runs.make(data, replace(case, signal="fixed", target=float(MOST)))["saturation"])
            above, below = difference_hours(run["engines"], need)
            lead = lead_minutes(run["accepting"], need, MOST // 2 + 1)
            found.append(run["figures"])
            others.append((above, below, lead))
        mean = {name: fmean(figures[name] for figures in found) for name in found[0]}
        above, below, lead = (fmean(column) for column in zip(*others, strict=True))
        yield [
            f"{signal} {target:g}",
            f"{mean['latency_s.mean'] / 60:.1f}",
            f"{mean['latency_s.p95'] / 60:.1f}",
            f"{mean['wait_s.mean'] / 60:.1f}",
            f"{mean['engine_hours']:.1f}",
            f"{above:.1f}",
            f"{below:.1f}",
            f"{lead:.0f}",
            f"{mean['changes']:.0f}",
            f"{100 * mean['moved_programs']:.0f}",
        ]


def move_rows(data: Path, runs: DayRuns, workload: str, target: float) -> Iterator[list[str]]:
    """Yield, by the balancer's margin, what moving programs brings and costs: means over the same seeds."""
    for margin in MARGINS:
        case = DayCase(workload=workload, signal="saturation", target=target, seed=0, margin=margin)
        found = [runs.make(data, replace(case, seed=seed))["figures"] for seed in MOVES_ON]
        mean = {name: fmean(figures[name] for figures in found) for name in found[0]}
        yield [
            f"{margin:g}",
            f"{mean['latency_s.mean'] / 60:.1f}",
            f"{mean['latency_s.p95'] / 60:.1f}",
            f"{mean['engine_hours']:.1f}",
            f"{1000 * mean['moves_per_call']:.1f}",
            f"{1000 * mean['returns_per_call']:.1f}",
            f"{mean['forced_moves']:.0f}",
            f"{100 * mean['moved_token_share']:.2f}",
            f"{100 * mean['computed_share']:.1f}",
        ]


def part_rows(runs: DayRuns, workload: str, targets: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield two hours of the day: programs in progress, then engines and waiting calls of each fleet."""
    chosen = {
        signal: runs.found[
            DayCase(workload=workload, signal=signal, target=targets[signal], seed=JUDGED_ON[0])
        ]["parts"]
        for signal in (*MEASURED, "known")
    }
    for part in range(12):
        yield [
            f"{2 * part} to {2 * part + 2}",
            f"{chosen['known'][part]['programs']:.1f}",
            *(f"{parts[part]['engines']:.1f}" for parts in chosen.values()),
            *(f"{parts[part]['waiting']:.1f}" for parts in chosen.values()),
        ]


MOVE_HEADER = (
    "margin",
    "mean, min",
    "p95",
    "engine-hours",
    "moves per 1,000 calls",
    "of them back",
    "moves by drains",
    "tokens recomputed by moves, %",
    "prompt tokens computed, %",
)
PART_HEADER = (
    "hour of the day",
    "programs",
    *(f"engines: {signal}" for signal in (*MEASURED, "known")),
    *(f"waiting: {signal}" for signal in (*MEASURED, "known")),
)
HEADER = (
    "fleet",
    "mean, min",
    "p95",
    "waiting",
    "engine-hours",
    "above the need",
    "below it",
    "fifth engine ahead by, min",
    "changes",
    "programs moved, %",
)


def main() -> None:
    """Make the runs and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--fleets", nargs="*", default=(), metavar="SIGNAL:TARGET")
    parser.add_argument("--out", type=Path, default=Path("fleet-day"))
    args = parser.parse_args()
    runs = DayRuns(args.out / "runs.jsonl")
    for fleet in args.fleets:
        signal, _, target = fleet.partition(":")
        case = DayCase(workload=args.workloads[0], signal=signal, target=float(target), seed=TUNED_ON)
        print(fleet, json.dumps(runs.make(args.data, case)["figures"]))
    if args.fleets:
        return
    for workload in args.workloads:
        targets = tune(args.data, runs, workload)
        tables = (
            markdown_table(HEADER, day_rows(args.data, runs, workload, targets)),
            markdown_table(PART_HEADER, part_rows(runs, workload, targets)),
            markdown_table(MOVE_HEADER, move_rows(args.data, runs, workload, targets["saturation"])),
        )
        for table in tables:
            print(f"\n{workload}\n", *table, sep="\n")


if __name__ == "__main__":
    main()
