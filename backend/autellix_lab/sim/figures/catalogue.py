"""Makes figures by name: curves of a latency, and all others."""

from __future__ import annotations

import functools
from collections.abc import Callable

from autellix_lab.sim.experiment import pick
from autellix_lab.sim.figures.base import Figure, Panel, PaperClaim, Series, Table, Verdict, shown
from autellix_lab.sim.figures.curves import (
    CURVES,
    METRICS,
    SCARCE_KV_SHARE,
    SCARCE_SLOTS,
    draw_curves,
    scarce,
    swap_times_s,
)
from autellix_lab.sim.figures.equal_latency import rate_at, seed_curves
from autellix_lab.sim.figures.motivation import MOTIVATION
from autellix_lab.sim.figures.study import POLICIES, TITLES, RunSweep, Study
from autellix_lab.workload.statistics import confidence_interval

MakeFigure = Callable[[Study, RunSweep], Figure]

REPLICAS = (1, 2, 4, 8)
REPLICA_LOADS = (0.4, 0.8, 1.2, 1.8)
REPLICA_FACTOR = 0.75
"""Programs of a run for each engine, over those of the main figures."""
LATENCY_FACTORS = (1.5, 2.0, 3.0)
"""Wanted latencies, over one engine's at the lowest rate."""
LINEAR_WITHIN = 0.15
"""Largest shortfall from the straight line that still counts as linear."""
OFFLINE_FACTORS = (1.0, 2.0, 4.0)
OFFLINE_SAVINGS = (0.10, 0.40)
"""The paper's, of the makespan."""
TIMING_LOAD = 1.2
MEMORY_NOTE = (
    f"{SCARCE_SLOTS} slots and {SCARCE_KV_SHARE:g} of the KV blocks: blocks run out before slots do."
)


def figure_15(study: Study, run: RunSweep) -> Figure:
    """Find the rate that 1, 2, 4 and 8 engines serve at one latency."""
    curves = {}
    for engines in REPLICAS:
        cases = {"locality": study.case("chat", POLICIES["chat"], engines=engines, balancer="locality")}
        loads = REPLICA_LOADS[::3] if study.is_quick else REPLICA_LOADS
        sweep = study.sweep("chat", cases, loads, factor=REPLICA_FACTOR * engines)
        curves[engines] = seed_curves(run(f"replicas: {engines}", sweep), "locality", METRICS["mean"])
    lowest = [points[0][1] for points in curves[1].values()]
    series, claims = [], []
    for factor in LATENCY_FACTORS:
        wanted_s = factor * sum(lowest) / len(lowest)
        found = {
            engines: [rate for points in by_seed.values() if (rate := rate_at(points, wanted_s)) is not None]
            for engines, by_seed in curves.items()
        }
        points = {engines: confidence_interval(rates) for engines, rates in found.items() if rates}
        series.append(Series(f"{wanted_s:.3f} s/token", tuple((float(x), y) for x, y in points.items())))
        what = f"rate of 8 engines over 1 at {wanted_s:.3f} s/token"
        if not {1, 8} <= points.keys():
            claims.append(PaperClaim(what, "linear (8x)", "not bracketed", Verdict.NOT_BRACKETED))
            continue
        ratio = points[8].mean / points[1].mean
        is_linear = ratio >= 8 * (1 - LINEAR_WITHIN)
        claims.append(
            PaperClaim.of(what, "linear (8x)", f"{ratio:.2f}x", is_reached=is_linear, has_direction=ratio > 1)
        )
    return Figure(
        name="15",
        title="Rate at one latency by number of engines",
        panels=(Panel(TITLES["chat"], "engines", "programs per second", tuple(series)),),
        claims=tuple(claims),
        notes=("Balancer `locality`. Programs grow with the engines, so that runs last equally long.",),
    )


def figure_16(study: Study, run: RunSweep) -> Figure:
    """Play growing batches of programs that all arrive at the start."""
    policies = {"vLLM tuned": "fcfs", "MLFQ": "mlfq", "Autellix": "plas"}
    cases = {name: study.case("chat", policy, scarce(study, "bulk")) for name, policy in policies.items()}
    results = {}
    for factor in OFFLINE_FACTORS[:1] if study.is_quick else OFFLINE_FACTORS:
        count = study.count("chat", factor)
        sweep = study.sweep("chat", cases, (1.0,), factor=factor, arrivals="at_once")
        results[count] = run(f"offline: {count}", sweep)
    claims = []
    for base in ("vLLM tuned", "MLFQ"):
        savings = [1 - each.ratio("Autellix", base, 1.0, "makespan_s").mean for each in results.values()]
        claims.append(
            PaperClaim.of(
                f"makespan of Autellix against {base}",
                "-{:.0%} to -{:.0%}".format(*OFFLINE_SAVINGS),
                f"{-min(savings):+.1%} to {-max(savings):+.1%}",
                is_reached=min(savings) >= OFFLINE_SAVINGS[0],
                has_direction=min(savings) > 0,
            )
        )
    series = tuple(
        Series(case, tuple((float(n), each.interval(case, 1.0, "makespan_s")) for n, each in results.items()))
        for case in policies
    )
    return Figure(
        name="16",
        title="Offline batches",
        panels=(Panel(TITLES["chat"], "programs", "makespan (s)", series),),
        claims=tuple(claims),
        notes=(MEMORY_NOTE, "Preempted calls are swapped; all three use the bulk transfer."),
    )


def figure_17(study: Study, run: RunSweep) -> Figure:
    """Split the time of a call outside the model: waiting for a slot, and steps delayed by swaps."""
    claims, rows = [], []
    for workload in ("chat", "tree"):
        systems = {"vLLM tuned": ("fcfs", "per_block"), "MLFQ": ("mlfq", "per_block")}
        systems["Autellix"] = (POLICIES[workload], "bulk")
        cases = {name: study.case(workload, of, scarce(study, swap)) for name, (of, swap) in systems.items()}
        result = run(f"timing: {workload}", study.sweep(workload, cases, (TIMING_LOAD,)))
        count = study.count(workload)
        pools = [pick(study.pools[workload], count, seed) for seed in study.seeds]
        calls = [sum(len(program.calls) for program in pool) for pool in pools]
        for case in cases:
            totals_s = {
                "waiting": [count * wait_s for wait_s in result.values(case, TIMING_LOAD, "wait_s.mean")],
                "swapping": swap_times_s(result, case, TIMING_LOAD),
            }
            times = [
                confidence_interval([each_s / n for each_s, n in zip(seconds, calls, strict=True)])
                for seconds in totals_s.values()
            ]
            rows.append((workload, case, *(shown(time_s, digits=4) for time_s in times)))
        for base in ("vLLM tuned", "MLFQ"):
            ratio = result.ratio("Autellix", base, TIMING_LOAD, "wait_s.mean").mean
            what = f"{workload}: waiting per call, Autellix against {base}"
            claims.append(PaperClaim.of(what, "falls", f"{ratio:.2f}x", is_reached=ratio < 1))
    return Figure(
        name="17",
        title="Waiting and swapping per call",
        claims=tuple(claims),
        tables=(Table("Seconds per call", ("workload", "system", "waiting", "swapping"), tuple(rows)),),
        notes=(
            MEMORY_NOTE,
            (
                "Tuned vLLM and MLFQ copy block by block, Autellix in bulk. Swapping is the time by which "
                "swaps delay engine steps, over the number of calls."
            ),
        ),
    )


_OTHERS: dict[str, MakeFigure] = {"15": figure_15, "16": figure_16, "17": figure_17}
_CURVES: dict[str, MakeFigure] = {each.name: functools.partial(draw_curves, each) for each in CURVES}
FIGURES = dict(sorted((_CURVES | _OTHERS | dict(MOTIVATION)).items(), key=lambda item: int(item[0])))
"""Function by the paper's number."""
