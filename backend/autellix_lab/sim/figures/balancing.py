"""Figures 14 and 15: balancers over several engines, and the rate at one latency by number of engines."""

from __future__ import annotations

from autellix_lab.sim.experiment import Sweep, SweepResult
from autellix_lab.sim.figures.base import Figure, Panel, PaperClaim, Series, Table, Verdict, gain_claim, shown
from autellix_lab.sim.figures.equal_latency import best_gain, rate_at, seed_curves
from autellix_lab.sim.figures.latency import latency_panel, ratio_of
from autellix_lab.sim.figures.study import POLICIES, TITLES, RunSweep, Study
from autellix_lab.workload.statistics import Interval, confidence_interval

METRICS = {"mean": "token_latency_s.mean", "p95": "token_latency_s.p95", "p99": "token_latency_s.p99"}
ENGINES = 4
PAPER_BALANCER_GAIN = 1.4
BALANCER_WORKLOADS = ("chat", "tree")
BALANCER_LOADS = {"chat": (0.5, 0.8, 1.1, 1.5), "tree": (0.4, 0.8, 1.2)}
BALANCER_FACTOR = 2.0
"""Programs of a run over those of one engine's: fewer than four times, to keep runs short."""
KV_SHARE = 0.25
"""Share of the engine's KV blocks: the paper's engines hold more calls, so have less for each one's past."""

REPLICAS = (1, 2, 4, 8)
REPLICA_LOADS = (0.4, 0.8, 1.2, 1.8)
REPLICA_FACTOR = 0.75
"""Programs of a run for each engine, over those of the main figures."""
SLO_FACTORS = (1.5, 2.0, 3.0)
"""Latency targets, over one engine's latency at the lowest rate."""
LINEAR_WITHIN = 0.15
"""Largest shortfall from the straight line that still counts as linear."""


def figure_14(study: Study, run: RunSweep) -> Figure:
    """Compare balancers on four engines under the same scheduling policy."""
    panels, claims, rows = [], [], []
    for workload in BALANCER_WORKLOADS:
        result = run(f"balancers: {workload}", _balancers(study, workload))
        for name, metric in METRICS.items():
            title, label = f"{TITLES[workload]}, {name}", f"{name} token latency (s/token)"
            panels.append(latency_panel(title, result, metric, label))
            for base in ("round_robin", "least_used"):
                gain = best_gain(result, "locality", base, metric)
                what = f"{workload}: throughput of locality over {base}, same {name}"
                claims.append(gain_claim(what, ratio_of(gain), PAPER_BALANCER_GAIN))
        rows += _cached_rows(workload, result)
    return Figure(
        name="14",
        title="Balancers on four engines",
        panels=tuple(panels),
        claims=tuple(claims),
        tables=(
            Table(
                "At the highest rate",
                ("workload", "balancer", "prompt from cache", "makespan (s)"),
                tuple(rows),
            ),
        ),
        notes=(
            (
                f"{ENGINES} engines of the 8B model with a quarter of their KV blocks each; "
                "the paper's second setting, two engines of the 70B model, is not run."
            ),
        ),
    )


def figure_15(study: Study, run: RunSweep) -> Figure:
    """Find the rate that 1, 2, 4 and 8 engines serve at one latency."""
    curves = {
        engines: seed_curves(
            run(f"replicas: {engines}", _replicas(study, engines)), "locality", METRICS["mean"]
        )
        for engines in REPLICAS
    }
    lowest = [points[0][1] for points in curves[REPLICAS[0]].values()]
    series, claims = [], []
    for factor in SLO_FACTORS:
        slo = factor * sum(lowest) / len(lowest)
        points = []
        for engines, by_seed in curves.items():
            rates = [rate for points_ in by_seed.values() if (rate := rate_at(points_, slo)) is not None]
            if rates:
                points.append((float(engines), confidence_interval(rates)))
        series.append(Series(f"{slo:.3f} s/token", tuple(points)))
        claims.append(_scaling_claim(slo, points))
    return Figure(
        name="15",
        title="Rate at one latency by number of engines",
        panels=(Panel(TITLES["chat"], "engines", "programs per second", tuple(series)),),
        claims=tuple(claims),
        notes=(
            (
                "Balancer `locality`. Programs grow with the engines, so that runs last equally long. "
                f"Linear: at most {LINEAR_WITHIN:.0%} below the straight line through one engine's rate."
            ),
        ),
    )


def _scaling_claim(slo: float, points: list[tuple[float, Interval]]) -> PaperClaim:
    what = f"rate of 8 engines over 1 at {slo:.3f} s/token"
    by_engines = dict(points)
    if not {1.0, 8.0} <= by_engines.keys():
        return PaperClaim(what, "linear (8x)", "not bracketed", Verdict.NOT_BRACKETED)
    ratio = by_engines[8.0].mean / by_engines[1.0].mean
    if ratio >= 8 * (1 - LINEAR_WITHIN):
        verdict = Verdict.REACHED
    else:
        verdict = Verdict.DIRECTION if ratio > 1 else Verdict.NOT_REACHED
    return PaperClaim(what, "linear (8x)", f"{ratio:.2f}x", verdict)


def _balancers(study: Study, workload: str) -> Sweep:
    model = study.model.with_kv(KV_SHARE)
    cases = {
        name: study.case(workload, POLICIES[workload], model, engines=ENGINES, balancer=name)
        for name in ("least_used", "round_robin", "locality")
    }
    loads = BALANCER_LOADS[workload]
    return study.sweep(workload, cases, loads[-1:] if study.is_quick else loads, factor=BALANCER_FACTOR)


def _replicas(study: Study, engines: int) -> Sweep:
    cases = {"locality": study.case("chat", POLICIES["chat"], engines=engines, balancer="locality")}
    loads = REPLICA_LOADS[::3] if study.is_quick else REPLICA_LOADS
    return study.sweep("chat", cases, loads, factor=REPLICA_FACTOR * engines)


def _cached_rows(workload: str, result: SweepResult) -> list[tuple[str, ...]]:
    load = result.loads[-1]
    return [
        (
            workload,
            case,
            shown(result.interval(case, load, "cached_share")),
            shown(result.interval(case, load, "makespan_s"), digits=0),
        )
        for case in ("round_robin", "least_used", "locality")
    ]
