"""The figures that motivate the paper, 4 to 7 and 11, and figure 18, which asks what more is possible."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from autellix_lab.sim.experiment import drain_rate_per_s, draw_bursts, pick
from autellix_lab.sim.figures.base import Figure, Panel, PaperClaim, Series, Table, Verdict, shown
from autellix_lab.sim.figures.curves import METRICS, SCARCE_SLOTS
from autellix_lab.sim.figures.study import POLICIES, TITLES, WORKLOADS, RunSweep, Study
from autellix_lab.sim.model import UNIT
from autellix_lab.sim.results import ProgramRecord
from autellix_lab.sim.simulation import SimSettings, simulate_bursts
from autellix_lab.workload.prefixes import system_prefix
from autellix_lab.workload.statistics import Interval, confidence_interval, mean_of
from autellix_lab.workload.trace import CallTrace, ProgramTrace

KINDS = ("chat", "tree")
"""The workloads of figures 6 and 18."""
BLOCKING_LOAD = 1.2
OPTIMAL_LOADS = (0.8, 1.2)
CONCURRENT_CALLS = 10
"""The paper's additional calls of figure 4."""
SIZES = 4
"""Groups of programs by their number of calls, equally many in each."""
HIT_RATE = 0.9
"""The paper's least hit rate within a program."""
INPUT_GROUPS = 8
PAPER_WORKLOADS: Mapping[str, Mapping[str, float]] = {
    "chat": {"calls": 6.66, "most calls": 80, "prefill": 256, "decode": 277},
    "react": {"calls": 10.75, "most calls": 70, "prefill": 735.06, "decode": 34.14},
    "tree": {"calls": 159.7, "prefill": 467.2, "decode": 72.6},
}
"""Section 6.1: calls of a program, new prompt tokens and generated tokens of a call."""
WITHIN = 0.1
"""Largest deviation of a mean that still counts as the paper's."""


def figure_4(study: Study, run: RunSweep) -> Figure:
    """Count the calls in the engine's batch, under vLLM's order and the paper's."""
    model = replace(study.model, max_num_seqs=SCARCE_SLOTS)
    cases = {"vLLM tuned": study.case("chat", "fcfs", model), "Autellix": study.case("chat", "plas", model)}
    result = run("concurrency: chat", study.sweep("chat", cases, study.loads("chat")))
    count = study.count("chat")

    def calls(case: str, load: float) -> list[float]:
        columns = (result.values(case, load, name) for name in ("service_s.mean", "makespan_s"))
        return [count * service_s / makespan_s for service_s, makespan_s in zip(*columns, strict=True)]

    series = [
        Series(case, tuple((load, confidence_interval(calls(case, load))) for load in result.loads))
        for case in cases
    ]
    load = result.loads[-1]
    ours, base = calls("Autellix", load), calls("vLLM tuned", load)
    more = confidence_interval([one - other for one, other in zip(ours, base, strict=True)])
    claim = PaperClaim.of(
        "additional calls in the batch at the highest load",
        f"+{CONCURRENT_CALLS}",
        shown(more, digits=1),
        is_reached=more.mean >= CONCURRENT_CALLS,
        has_direction=more.mean - more.half_width > 0,
    )
    return Figure(
        name="4",
        title="Calls in the batch",
        panels=(Panel(TITLES["chat"], "offered load", "mean calls in the batch", tuple(series)),),
        claims=(claim,),
        notes=(f"{SCARCE_SLOTS} slots; service of all calls over the time of the run.",),
    )


def figure_5(study: Study, run: RunSweep) -> Figure:
    """Split the time of programs into waiting and execution, by load, under vLLM's order."""
    series, claims = [], []
    for workload in WORKLOADS:
        cases = {"vLLM tuned": study.case(workload, "fcfs")}
        result = run(f"waiting: {workload}", study.sweep(workload, cases, study.loads(workload)))
        shares = {
            load: confidence_interval(
                [
                    wait_s / (wait_s + service_s)
                    for wait_s, service_s in zip(
                        *(
                            result.values("vLLM tuned", load, f"{name}.mean")
                            for name in ("wait_s", "service_s")
                        ),
                        strict=True,
                    )
                ]
            )
            for load in result.loads
        }
        series.append(Series(workload, tuple(shares.items())))
        highest = shares[result.loads[-1]]
        claims.append(
            PaperClaim.of(
                f"{workload}: share of waiting at the highest load",
                "most",
                f"{highest.mean:.0%}",
                is_reached=highest.mean > 1 / 2,
            )
        )
    return Figure(
        name="5",
        title="Waiting and execution of programs",
        panels=(Panel("vLLM tuned", "offered load", "share of waiting", tuple(series)),),
        claims=tuple(claims),
        notes=("Waiting and service of all calls of a program; tuned vLLM is FCFS with a prefix cache.",),
    )


def figure_6(study: Study, _run: RunSweep) -> Figure:
    """Compare waiting to execution for short programs and long ones."""
    panels, claims = [], []
    for workload in KINDS:
        policies = {"vLLM tuned": "fcfs", "MLFQ": "mlfq", "Autellix": POLICIES[workload]}
        ratios = {
            case: [
                _ratios_by_calls(_records(study, workload, study.case(workload, policy), seed))
                for seed in study.seeds
            ]
            for case, policy in policies.items()
        }
        series = [
            Series(
                case,
                tuple(
                    (
                        mean_of([calls for calls, _ in group]),
                        confidence_interval([ratio for _, ratio in group]),
                    )
                    for group in zip(*by_seed, strict=True)
                ),
            )
            for case, by_seed in ratios.items()
        ]
        panels.append(Panel(TITLES[workload], "calls of a program", "waiting / execution", tuple(series)))
        shortest = {case: mean_of([seed[0][1] for seed in by_seed]) for case, by_seed in ratios.items()}
        longest = {case: mean_of([seed[-1][1] for seed in by_seed]) for case, by_seed in ratios.items()}
        for case in ("vLLM tuned", "MLFQ"):
            claims += [
                PaperClaim.of(
                    f"{workload}, {case}: waiting / execution of the shortest programs over the longest",
                    "above 1",
                    f"{shortest[case] / longest[case]:.2f}",
                    is_reached=shortest[case] > longest[case],
                ),
                PaperClaim.of(
                    f"{workload}: the same of the shortest programs, Autellix over {case}",
                    "falls",
                    f"{shortest['Autellix'] / shortest[case]:.2f}",
                    is_reached=shortest["Autellix"] < shortest[case],
                ),
            ]
    return Figure(
        name="6",
        title="Blocking of programs",
        panels=tuple(panels),
        claims=tuple(claims),
        notes=(
            f"Offered load {BLOCKING_LOAD:g}; medians of {SIZES} groups of programs with as many in each.",
            "The paper's panels by the tokens of a call are left out.",
        ),
    )


def figure_7(study: Study, _run: RunSweep) -> Figure:
    """Find how much of a prompt an endless cache has, of the program itself and of others."""
    panels, claims = [], []
    for workload in PAPER_WORKLOADS:
        shares = [*_hits(study.pools[workload])]
        series = [
            Series(name, tuple(_by_input((tokens, share[place]) for tokens, share in shares)))
            for place, name in enumerate(("within the program", "across programs"))
        ]
        panels.append(Panel(TITLES[workload], "prompt tokens", "share in the cache", tuple(series)))
        least = min(y.mean for _, y in series[0].points)
        first, last = series[1].points[0][1].mean, series[1].points[-1][1].mean
        across = f"{workload}: hit rate across programs, shortest prompts to longest"
        claims += [
            PaperClaim.of(
                f"{workload}: least hit rate within a program",
                f"above {HIT_RATE:.0%}",
                f"{least:.0%}",
                is_reached=least >= HIT_RATE,
                has_direction=least > 1 / 2,
            ),
            PaperClaim.of(across, "falls", f"{first:.0%} → {last:.0%}", is_reached=last < first)
            if first or last
            else PaperClaim(across, "falls", "no system prompts known", Verdict.OPEN),
        ]
    return Figure(
        name="7",
        title="Hits in the prefix cache",
        panels=tuple(panels),
        claims=tuple(claims),
        notes=(
            "Counted in the programs, without a simulation and a bound on memory.",
            "Within: prompt tokens that an earlier call of the program had, of calls that are not its first.",
            "Across: those of system prefixes that other programs share.",
        ),
    )


def figure_11(study: Study, _run: RunSweep) -> Figure:
    """Describe the programs beside the paper's."""
    rows, claims = [], []
    for workload, paper in PAPER_WORKLOADS.items():
        programs = study.pools[workload]
        calls = [len(program.calls) for program in programs]
        every = [call for program in programs for call in program.calls]
        found = {
            "calls": mean_of(calls),
            "most calls": float(max(calls)),
            "prefill": mean_of([call.new_tokens for call in every]),
            "decode": mean_of([call.decode_tokens for call in every]),
        }
        rows.append((workload, *(f"{value:.4g}" for value in found.values())))
        claims += [
            PaperClaim.of(
                f"{workload}: {name}",
                f"{expected:g}",
                f"{found[name]:.4g}",
                is_reached=abs(found[name] / expected - 1) <= WITHIN,
            )
            for name, expected in paper.items()
        ]
    header = ("workload", "calls of a program", "most", "new prompt tokens of a call", "generated tokens")
    return Figure(
        name="11",
        title="The workloads",
        claims=tuple(claims),
        tables=(Table("Means", header, tuple(rows)),),
        notes=(f"A mean within {WITHIN:.0%} of the paper's is reached.",),
    )


def figure_18(study: Study, run: RunSweep) -> Figure:
    """Compare policies where every step is alike and only slots are scarce, one of which knows all sizes."""
    model = replace(UNIT, max_num_seqs=study.model.max_num_seqs)
    panels, claims = [], []
    for workload in KINDS:
        policies = {
            "FCFS": "fcfs",
            "Round robin": "round_robin",
            "MLFQ": "mlfq",
            "Autellix": POLICIES[workload],
            "SRPT": "srpt",
        }
        cases = {name: study.case(workload, policy, model) for name, policy in policies.items()}
        result = run(f"optimal: {workload}", study.sweep(workload, cases, OPTIMAL_LOADS))
        series = [
            Series(case, tuple((load, result.interval(case, load, METRICS["mean"])) for load in result.loads))
            for case in cases
        ]
        panels.append(Panel(TITLES[workload], "offered load", "steps per token", tuple(series)))
        ratio = functools.partial(result.ratio, load=result.loads[-1], metric=METRICS["mean"])
        claims += [
            _falls(f"{workload}: latency of Autellix over {base}", ratio("Autellix", base))
            for base in ("FCFS", "Round robin", "MLFQ")
        ]
        gap = f"{workload}: latency of SRPT over Autellix"
        claims.append(_falls(gap, ratio("SRPT", "Autellix"), "a visible gap"))
    return Figure(
        name="18",
        title="Beside a clairvoyant policy",
        panels=tuple(panels),
        claims=tuple(claims),
        notes=("SRPT knows the remaining work of each program.",),
    )


MOTIVATION: Mapping[str, Callable[[Study, RunSweep], Figure]] = {
    "4": figure_4,
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "11": figure_11,
    "18": figure_18,
}
"""Function by the paper's number."""


def _falls(what: str, ratio: Interval, paper: str = "falls") -> PaperClaim:
    """Return the claim of a ratio below 1, which is open if its interval has 1 in it."""
    spread = ratio.half_width if math.isfinite(ratio.half_width) else 0.0
    verdict = Verdict.OPEN if ratio.mean + spread >= 1 > ratio.mean else Verdict.REACHED
    return PaperClaim(what, paper, shown(ratio), verdict if ratio.mean < 1 else Verdict.NOT_REACHED)


def _records(study: Study, workload: str, settings: SimSettings, seed: int) -> list[ProgramRecord]:
    programs = pick(study.pools[workload], study.count(workload), seed)
    rate_per_s = BLOCKING_LOAD * drain_rate_per_s(programs, settings)
    return simulate_bursts(draw_bursts("poisson", programs, rate_per_s, seed), settings).programs


def _ratios_by_calls(records: Sequence[ProgramRecord]) -> list[tuple[float, float]]:
    """Return the mean number of calls and the median of waiting over execution of each group."""
    ordered = sorted(records, key=lambda record: (record.calls, record.program_id))
    cuts = [round(group * len(ordered) / SIZES) for group in range(SIZES + 1)]
    groups = [ordered[begin:end] for begin, end in itertools.pairwise(cuts) if end > begin]
    return [
        (
            mean_of([record.calls for record in group]),
            median(record.wait_s / record.service_s for record in group),
        )
        for group in groups
    ]


def _hits(programs: Sequence[ProgramTrace]) -> Iterable[tuple[int, tuple[float, float]]]:
    """Yield the prompt tokens of each call but the first ones, and both shares of them."""
    prefixes = {program.program_id: system_prefix(program) for program in programs}
    shared = Counter(prefix.key for prefix in prefixes.values() if prefix is not None)
    for program in programs:
        prefix = prefixes[program.program_id]
        is_shared = prefix is not None and shared[prefix.key] > 1
        for place, call in enumerate(program.calls):
            if place and call.prefill_tokens:
                others = prefix.tokens[place] if prefix is not None and is_shared else 0
                yield call.prefill_tokens, (_within(call), others / call.prefill_tokens)


def _within(call: CallTrace) -> float:
    return call.shared_prefix_tokens / call.prefill_tokens


def _by_input(shares: Iterable[tuple[int, float]]) -> list[tuple[float, Interval]]:
    """Return the mean share by the length of prompts, in groups of equally many calls."""
    ordered = sorted(shares)
    cuts = [round(group * len(ordered) / INPUT_GROUPS) for group in range(INPUT_GROUPS + 1)]
    return [
        (
            mean_of([tokens for tokens, _ in ordered[begin:end]]),
            confidence_interval([share for _, share in ordered[begin:end]]),
        )
        for begin, end in itertools.pairwise(cuts)
        if end > begin
    ]
