"""Figure 18: policies against the clairvoyant, where all steps are equal and nothing but slots is scarce."""

from __future__ import annotations

from dataclasses import replace

from autellix_lab.sim.experiment import Sweep, SweepResult
from autellix_lab.sim.figures.base import Figure, PaperClaim, Table, Verdict, shown
from autellix_lab.sim.figures.latency import latency_panel
from autellix_lab.sim.figures.study import POLICIES, TITLES, RunSweep, Study

WORKLOADS = ("chat", "tree")
SLOTS = 16
LOADS = {"chat": (0.7, 0.9, 1.1, 1.4), "tree": (0.7, 1.0, 1.3)}
HINT_SIGMA = 0.5
"""Spread of the hints' error: a guess is off by 1.6 or more one time in three."""
WORSE = {"FCFS": "fcfs", "round robin": "round_robin", "MLFQ": "mlfq"}
METRIC = "token_latency_s.mean"
PROGRAM_METRIC = "latency_s.mean"


def figure_18(study: Study, run: RunSweep) -> Figure:
    """Compare policies without a program's future, with hints of it, and with all of it."""
    panels, claims, rows = [], [], []
    for workload in WORKLOADS:
        result = run(f"optimum: {workload}", _sweep(study, workload))
        for title, metric, label in (
            ("token latency", METRIC, "token latency (s/token)"),
            ("latency", PROGRAM_METRIC, "program latency (s)"),
        ):
            panels.append(latency_panel(f"{TITLES[workload]}, {title}", result, metric, label))
        load = result.loads[-1]
        claims.append(_order_claim(workload, result, load))
        for metric, name in ((METRIC, "token latency"), (PROGRAM_METRIC, "program latency")):
            rows += _rows(workload, name, result, load, metric)
    return Figure(
        name="18",
        title="Against the clairvoyant",
        panels=tuple(panels),
        claims=tuple(claims),
        tables=(
            Table(
                "Mean latency at the highest rate, ratio to FCFS, less is better",
                ("workload", "metric", "round robin", "MLFQ", "Autellix", "hinted", "SRPT"),
                tuple(rows),
            ),
        ),
        notes=(
            f"All steps take the same time and prompts none; {SLOTS} slots, blocks without end.",
            (
                "SRPT knows the model time that a program has left. `hinted` is ours: clients guess the "
                f"tokens that a program has left, with a log-normal error of spread {HINT_SIGMA:g}. Both aim "
                "at program latency; the paper's metric divides it by the program's tokens, which favours "
                "programs that are long."
            ),
        ),
    )


def _sweep(study: Study, workload: str) -> Sweep:
    full_s = study.model.step_time_s(SLOTS, 0)
    model = replace(
        study.model,
        max_num_seqs=SLOTS,
        token_budget=1 << 30,
        step_s=full_s,
        decode_s=0.0,
        prefill_s=0.0,
        kv_blocks=None,
    )
    policies = {**WORSE, "Autellix": POLICIES[workload], "hinted": "hinted", "SRPT": "srpt"}
    cases = {
        name: study.case(workload, policy, model, hint_sigma=HINT_SIGMA if policy == "hinted" else None)
        for name, policy in policies.items()
    }
    loads = LOADS[workload]
    return study.sweep(workload, cases, loads[-1:] if study.is_quick else loads)


def _rows(workload: str, name: str, result: SweepResult, load: float, metric: str) -> list[tuple[str, ...]]:
    others = ("round robin", "MLFQ", "Autellix", "hinted", "SRPT")
    return [(workload, name, *(shown(result.ratio(case, "FCFS", load, metric)) for case in others))]


def _order_claim(workload: str, result: SweepResult, load: float) -> PaperClaim:
    def mean(case: str) -> float:
        return result.interval(case, load, METRIC).mean

    ours, best = mean("Autellix"), mean("SRPT")
    beaten = [case for case in WORSE if ours < mean(case)]
    if len(beaten) == len(WORSE) and best < ours:
        verdict = Verdict.REACHED
    else:
        verdict = Verdict.DIRECTION if beaten else Verdict.NOT_REACHED
    gap = f"SRPT at {best / ours:.2f} of it"
    return PaperClaim(
        f"{workload}: latency, FCFS, RR, MLFQ > Autellix > SRPT",
        "in this order",
        f"better than {', '.join(beaten) or 'none'}; {gap}",
        verdict,
    )
