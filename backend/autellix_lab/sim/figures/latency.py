"""Figures 12 and 13, and ours: latency over the arrival rate on one engine, with wins and losses."""

from __future__ import annotations

import math

from autellix_lab.sim.experiment import Sweep, SweepResult
from autellix_lab.sim.figures.base import (
    EQUAL_WITHIN,
    Figure,
    Panel,
    PaperClaim,
    Series,
    Table,
    Verdict,
    judge,
    shown,
)
from autellix_lab.sim.figures.equal_latency import Gain, best_gain, curve
from autellix_lab.sim.figures.study import TITLES, WORKLOADS, RunSweep, Study, systems
from autellix_lab.workload.statistics import Interval

__all__ = ["figure_12", "figure_13", "figure_today", "latency_series"]

MEAN, P95, P99 = "token_latency_s.mean", "token_latency_s.p95", "token_latency_s.p99"
RATE_LABEL = "programs per second"

PAPER_GAINS = {
    "chat": {"vLLM": 8.0, "vLLM tuned": 2.0, "MLFQ": 1.5},
    "react": {"vLLM": 8.0, "vLLM tuned": 2.0, "MLFQ": 1.5},
    "tree": {"vLLM": 5.0, "vLLM tuned": 2.0, "MLFQ": 2.5},
    "mixed": {"vLLM": 15.0, "vLLM tuned": 4.0, "MLFQ": 5.5},
}
"""Throughput at equal latency, up to (section 6.3)."""
PAPER_TAIL_GAIN = 1.7

COMPARED = {
    "token latency, mean": MEAN,
    "token latency, p95": P95,
    "token latency, p99": P99,
    "program latency, mean": "latency_s.mean",
    "program latency, p95": "latency_s.p95",
    "makespan": "makespan_s",
}


def figure_12(study: Study, run: RunSweep) -> Figure:
    """Compare mean token latencies, and throughputs at equal latency."""
    results = {workload: _main(study, workload, run) for workload in WORKLOADS}
    panels, claims, rows = [], [], []
    for workload, result in results.items():
        panels.append(
            Panel(
                TITLES[workload],
                RATE_LABEL,
                "token latency (s/token)",
                latency_series(result, MEAN),
                is_log_y=True,
            )
        )
        for base, paper in PAPER_GAINS[workload].items():
            for case in ("Autellix", "Autellix, PLAS"):
                if case not in systems(study, workload):
                    continue
                gain = best_gain(result, case, base, MEAN)
                at = "" if gain is None else f" at {gain.level:.3f} s/token"
                claims.append(
                    PaperClaim(
                        f"{workload}: throughput of {case} over {base}, same mean latency",
                        f"up to {paper:g}x",
                        shown(_ratio(gain), unit="x") + at,
                        judge(_ratio(gain), paper),
                    )
                )
        rows += _at_twice(workload, result)
    return Figure(
        name="12",
        title="One engine, mean token latency",
        panels=tuple(panels),
        claims=tuple(claims),
        tables=(
            Table(
                "The same at one latency: twice that of tuned vLLM at the lowest rate",
                ("workload", "latency (s/token)", "over vLLM", "over vLLM tuned", "over MLFQ"),
                tuple(rows),
            ),
        ),
        notes=(
            (
                "vLLM is FCFS without prefix cache; tuned vLLM, MLFQ and Autellix have it. "
                "Simulated prompts are read in chunks by all four."
            ),
            (
                "Throughputs are interpolated linearly between the simulated rates. The latency is the one "
                "at which the mean curves are furthest apart, among those that both reach: `up to`, "
                "as in the paper."
            ),
        ),
    )


def figure_13(study: Study, run: RunSweep) -> Figure:
    """Compare the tails of the token latency."""
    panels, claims, ahead = [], [], 0
    for workload in WORKLOADS:
        result = _main(study, workload, run)
        for name, metric in (("p95", P95), ("p99", P99)):
            panels.append(
                Panel(
                    f"{TITLES[workload]}, {name}",
                    RATE_LABEL,
                    f"{name} token latency (s/token)",
                    latency_series(result, metric, without="vLLM"),
                    is_log_y=True,
                )
            )
            gains = {base: best_gain(result, "Autellix", base, metric) for base in ("vLLM tuned", "MLFQ")}
            ahead += all(_is_ahead(result, base, metric) for base in gains)
            for base, gain in gains.items():
                claims.append(
                    PaperClaim(
                        f"{workload}: throughput of Autellix over {base}, same {name}",
                        f"up to {PAPER_TAIL_GAIN:g}x",
                        shown(_ratio(gain), unit="x"),
                        judge(_ratio(gain), PAPER_TAIL_GAIN),
                    )
                )
    claims.insert(
        0,
        PaperClaim(
            "tail not above both baselines' at the highest rate, of 8 cases",
            "7",
            str(ahead),
            Verdict.REACHED if ahead >= 7 else Verdict.DIRECTION if ahead > 4 else Verdict.NOT_REACHED,
        ),
    )
    return Figure(
        name="13",
        title="One engine, tails of the token latency",
        panels=tuple(panels),
        claims=tuple(claims),
        notes=("The same runs as for figure 12.",),
    )


def figure_today(study: Study, run: RunSweep) -> Figure:
    """Compare Autellix with today's vLLM, tuned, at every rate and metric."""
    panels, rows = [], []
    totals = {"win": 0, "equal": 0, "lose": 0, "open": 0}
    for workload in WORKLOADS:
        result = _main(study, workload, run)
        loads = study.loads(workload)
        rates = [rate for rate, _ in curve(result, "vLLM tuned", MEAN)]
        cases = [case for case in ("Autellix", "Autellix, PLAS") if case in systems(study, workload)]
        for case in cases:
            series = []
            for title, metric in COMPARED.items():
                ratios = [result.ratio(case, "vLLM tuned", load, metric) for load in loads]
                series.append(Series(title, tuple(zip(rates, ratios, strict=True))))
                outcomes = [_outcome(ratio) for ratio in ratios]
                for outcome in outcomes:
                    totals[outcome] += 1
                rows.append((f"{workload}, {case}", title, *_spread(ratios, outcomes)))
            panels.append(Panel(f"{workload}: {case}", RATE_LABEL, "ratio to tuned vLLM", tuple(series)))
    summary = ", ".join(f"{name} {count}" for name, count in totals.items())
    return Figure(
        name="today",
        title="Against today's vLLM, tuned",
        panels=tuple(panels),
        tables=(
            Table(
                f"Ratio to tuned vLLM, less is better ({summary})",
                (
                    "workload",
                    "metric",
                    "lowest rate",
                    "middle rate",
                    "highest rate",
                    "win / equal / lose / open",
                ),
                tuple(rows),
            ),
        ),
        notes=(
            (
                "Tuned vLLM: prefix cache, chunked prefill, FCFS, preemption by recomputation when "
                "blocks run out."
            ),
            (
                "Win or lose: the 95 % interval of the ratio, taken seed by seed, lies below or "
                "above one, and "
                f"the ratio is off by {EQUAL_WITHIN:.0%} or more. Equal: off by less. Open: the "
                "interval holds "
                "one."
            ),
        ),
    )


def latency_series(result: SweepResult, metric: str, without: str = "") -> tuple[Series, ...]:
    """Return one line per case of a metric over the mean rate."""
    series = []
    for case in dict.fromkeys(point.case for point in result.points):
        if case == without:
            continue
        loads = sorted({point.load for point in result.points if point.case == case})
        rates = [rate for rate, _ in curve(result, case, metric)]
        points = tuple(
            (rate, result.interval(case, load, metric)) for rate, load in zip(rates, loads, strict=True)
        )
        series.append(Series(case, points))
    return tuple(series)


def _main(study: Study, workload: str, run: RunSweep) -> SweepResult:
    return run(
        f"main: {workload}",
        Sweep(
            programs=study.pools[workload],
            count=study.count(workload),
            cases=systems(study, workload),
            loads=study.loads(workload),
            seeds=study.seeds,
        ),
    )


def _at_twice(workload: str, result: SweepResult) -> list[tuple[str, ...]]:
    level = 2 * curve(result, "vLLM tuned", MEAN)[0][1]
    gains = [best_gain(result, "Autellix", base, MEAN, level) for base in ("vLLM", "vLLM tuned", "MLFQ")]
    return [(workload, f"{level:.3f}", *(shown(_ratio(gain), unit="x") for gain in gains))]


def _ratio(gain: Gain | None) -> Interval | None:
    return None if gain is None else gain.ratio


def _is_ahead(result: SweepResult, base: str, metric: str) -> bool:
    load = max(point.load for point in result.points)
    return result.ratio("Autellix", base, load, metric).mean <= 1


def _outcome(ratio: Interval) -> str:
    spread = ratio.half_width if math.isfinite(ratio.half_width) else 0.0
    if abs(ratio.mean - 1) < EQUAL_WITHIN:
        return "equal"
    if ratio.mean + spread < 1:
        return "win"
    return "lose" if ratio.mean - spread > 1 else "open"


def _spread(ratios: list[Interval], outcomes: list[str]) -> tuple[str, ...]:
    picked = (ratios[0], ratios[len(ratios) // 2], ratios[-1])
    counts = (str(outcomes.count(name)) for name in ("win", "equal", "lose", "open"))
    return (*(shown(ratio) for ratio in picked), " / ".join(counts))
