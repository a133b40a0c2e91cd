"""Figures 12 and 13, and ours: latency over the arrival rate on one engine, with wins and losses."""

from __future__ import annotations

import math

from autellix_lab.sim.experiment import SweepResult
from autellix_lab.sim.figures.base import (
    EQUAL_WITHIN,
    Figure,
    Panel,
    PaperClaim,
    Series,
    Table,
    Verdict,
    gain_claim,
    shown,
)
from autellix_lab.sim.figures.equal_latency import Gain, best_gain, curve
from autellix_lab.sim.figures.study import TITLES, WORKLOADS, RunSweep, Study, systems
from autellix_lab.workload.statistics import Interval

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

OUTCOMES = ("win", "equal", "lose", "open")


def figure_12(study: Study, run: RunSweep) -> Figure:
    """Compare mean token latencies, and throughputs at equal latency."""
    results = {workload: _main(study, workload, run) for workload in WORKLOADS}
    panels, claims, rows = [], [], []
    for workload, result in results.items():
        panels.append(latency_panel(TITLES[workload], result, MEAN, "token latency (s/token)"))
        for base, paper in PAPER_GAINS[workload].items():
            for case in ("Autellix", "Autellix, PLAS"):
                if case not in systems(study, workload):
                    continue
                gain = best_gain(result, case, base, MEAN)
                at = "" if gain is None else f" at {gain.level:.3f} s/token"
                what = f"{workload}: throughput of {case} over {base}, same mean latency"
                claims.append(gain_claim(what, ratio_of(gain), paper, at=at))
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
                "at which the mean curves are furthest apart, among those that both reach: `up to`, as in "
                "the paper."
            ),
        ),
    )


def figure_13(study: Study, run: RunSweep) -> Figure:
    """Compare the tails of the token latency."""
    panels, claims, ahead = [], [], 0
    for workload in WORKLOADS:
        result = _main(study, workload, run)
        for name, metric in (("p95", P95), ("p99", P99)):
            title, label = f"{TITLES[workload]}, {name}", f"{name} token latency (s/token)"
            panels.append(latency_panel(title, result, metric, label, without="vLLM"))
            gains = {base: best_gain(result, "Autellix", base, metric) for base in ("vLLM tuned", "MLFQ")}
            ahead += all(_is_ahead(result, base, metric) for base in gains)
            for base, gain in gains.items():
                what = f"{workload}: throughput of Autellix over {base}, same {name}"
                claims.append(gain_claim(what, ratio_of(gain), PAPER_TAIL_GAIN))
    verdict = Verdict.REACHED if ahead >= 7 else Verdict.DIRECTION if ahead > 4 else Verdict.NOT_REACHED
    what = "tail not above both baselines' at the highest rate, of 8 cases"
    claims.insert(0, PaperClaim(what, "7", str(ahead), verdict))
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
    totals = dict.fromkeys(OUTCOMES, 0)
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
                ("workload", "metric", "lowest rate", "middle rate", "highest rate", " / ".join(OUTCOMES)),
                tuple(rows),
            ),
        ),
        notes=(
            (
                "Tuned vLLM: prefix cache, chunked prefill, FCFS, preemption by recomputation when blocks "
                "run out."
            ),
            (
                "Win or lose: the 95 % interval of the ratio, taken seed by seed, lies below or above one, "
                f"and the ratio is off by {EQUAL_WITHIN:.0%} or more. Equal: off by less. Open: the "
                "interval holds one."
            ),
        ),
    )


def latency_panel(title: str, result: SweepResult, metric: str, label: str, without: str = "") -> Panel:
    """Return a metric over the rate, on a logarithmic scale."""
    return Panel(title, RATE_LABEL, label, rate_series(result, metric, without), is_log_y=True)


def rate_series(result: SweepResult, metric: str, without: str = "") -> tuple[Series, ...]:
    """Return one line per case of a metric over the mean rate."""
    series = []
    for case in result.cases:
        if case == without:
            continue
        rates = [rate for rate, _ in curve(result, case, metric)]
        means = [result.interval(case, load, metric) for load in result.loads]
        series.append(Series(case, tuple(zip(rates, means, strict=True))))
    return tuple(series)


def _main(study: Study, workload: str, run: RunSweep) -> SweepResult:
    sweep = study.sweep(workload, systems(study, workload), study.loads(workload))
    return run(f"main: {workload}", sweep)


def _at_twice(workload: str, result: SweepResult) -> list[tuple[str, ...]]:
    level = 2 * curve(result, "vLLM tuned", MEAN)[0][1]
    gains = [best_gain(result, "Autellix", base, MEAN, level) for base in ("vLLM", "vLLM tuned", "MLFQ")]
    return [(workload, f"{level:.3f}", *(shown(ratio_of(gain), unit="x") for gain in gains))]


def ratio_of(gain: Gain | None) -> Interval | None:
    """Return the ratio of a gain that could be taken."""
    return None if gain is None else gain.ratio


def _is_ahead(result: SweepResult, base: str, metric: str) -> bool:
    load = result.loads[-1]
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
    counts = (str(outcomes.count(name)) for name in OUTCOMES)
    return (*(shown(ratio) for ratio in picked), " / ".join(counts))
