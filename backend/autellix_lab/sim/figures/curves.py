"""Figures that are curves over the arrival rate, judged by the throughputs at one latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autellix_lab.sim.experiment import Sweep, SweepResult
from autellix_lab.sim.figures.base import Figure, Panel, PaperClaim, Series, gain_claim
from autellix_lab.sim.figures.equal_latency import best_gain, curve
from autellix_lab.sim.figures.study import POLICIES, TITLES, WORKLOADS, RunSweep, Study, systems
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import LLAMA_31_8B, MEMCPY_LAUNCH_S
from autellix_lab.workload.statistics import confidence_interval

METRICS = {"mean": "token_latency_s.mean", "p95": "token_latency_s.p95", "p99": "token_latency_s.p99"}
RATE_LABEL = "programs per second"
SCARCE_SLOTS = 64
SCARCE_KV_SHARE = 0.125
"""Share of the engine's KV blocks beside these slots: blocks run out before slots do."""
COPIES_PER_BLOCK = 2 * LLAMA_31_8B.layers
"""vLLM 0.6.1 keeps keys and values of each layer apart, and copies each part of a block by itself."""
ENGINES = 4
ENGINES_KV_SHARE = 0.25
"""Share of the engine's KV blocks: the paper's engines hold more calls, so have less for each one's past."""
ENGINES_LOADS = {"chat": (0.5, 0.8, 1.1, 1.5), "tree": (0.4, 0.8, 1.2)}
ENGINES_FACTOR = 2.0
"""Programs of a run over those of one engine's: fewer than four times, to keep runs short."""
SWAP_LOADS = (0.5, 0.8, 1.1, 1.5)

Gains = Mapping[tuple[str, str], float]
"""The paper's throughput at equal latency, up to, by case and baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """One figure: what it simulates for each workload, what it draws, and what the paper claims."""

    name: str
    title: str
    sweep: Callable[[Study, str], Sweep]
    gains: Mapping[str, Gains]
    """By workload."""
    metrics: tuple[str, ...] = ("mean",)
    """Of METRICS: each has a panel, and all gains are judged at equal values of it."""
    runs: str
    """Name of the sweeps; figures of one name share them."""
    more_claims: Callable[[Mapping[str, SweepResult]], list[PaperClaim]] = lambda _: []
    notes: tuple[str, ...] = ()


def draw_curves(figure: Curves, study: Study, run: RunSweep) -> Figure:
    """Simulate the workloads of a figure, and judge its claims."""
    results = {name: run(f"{figure.runs}: {name}", figure.sweep(study, name)) for name in figure.gains}
    panels = [
        latency_panel(f"{TITLES[workload]}, {metric}", result, METRICS[metric], metric)
        for workload, result in results.items()
        for metric in figure.metrics
    ]
    claims = [
        gain_claim(
            f"{workload}: throughput of {case} over {base}, same {metric}",
            best_gain(result, case, base, METRICS[metric]),
            paper,
        )
        for workload, result in results.items()
        for metric in figure.metrics
        for (case, base), paper in figure.gains[workload].items()
    ]
    return Figure(
        name=figure.name,
        title=figure.title,
        panels=tuple(panels),
        claims=(*figure.more_claims(results), *claims),
        notes=figure.notes,
    )


def latency_panel(title: str, result: SweepResult, metric: str, statistic: str) -> Panel:
    """Return one line per case of a metric over the mean rate, on a logarithmic scale."""
    series = []
    for case in result.cases:
        rates = [rate for rate, _ in curve(result, case, metric)]
        values = [result.interval(case, load, metric) for load in result.loads]
        series.append(Series(case, tuple(zip(rates, values, strict=True))))
    return Panel(title, RATE_LABEL, f"{statistic} token latency (s/token)", tuple(series), is_log_y=True)


def scarce(study: Study, swap: str) -> EngineModel:
    """Return the engine with many slots and few KV blocks, which swaps block by block or in bulk."""
    copies = COPIES_PER_BLOCK if swap == "per_block" else 1
    return replace(
        study.model.with_kv(SCARCE_KV_SHARE),
        max_num_seqs=SCARCE_SLOTS,
        resume="swap",
        swap=swap,
        swap_transfer_s=copies * MEMCPY_LAUNCH_S,
    )


def swap_times_s(result: SweepResult, case: str, load: float) -> list[float]:
    """Return the time by which swaps delayed the engine's steps, by seed."""
    columns = (result.values(case, load, name) for name in ("swap_share", "utilisation", "makespan_s"))
    return [share * busy * makespan for share, busy, makespan in zip(*columns, strict=True)]


def main_sweep(study: Study, workload: str) -> Sweep:
    """Return the four systems of the main comparison over the rate."""
    return study.sweep(workload, systems(study, workload), study.loads(workload))


def balancer_sweep(study: Study, workload: str) -> Sweep:
    """Return the balancers over four engines, under the workload's policy."""
    model = study.model.with_kv(ENGINES_KV_SHARE)
    cases = {
        name: study.case(workload, POLICIES[workload], model, engines=ENGINES, balancer=name)
        for name in ("least_used", "round_robin", "locality")
    }
    loads = ENGINES_LOADS[workload]
    return study.sweep(workload, cases, loads[-1:] if study.is_quick else loads, factor=ENGINES_FACTOR)


def swap_sweep(study: Study, workload: str) -> Sweep:
    """Return both ways to swap over the rate."""
    cases = {swap: study.case(workload, "plas", scarce(study, swap)) for swap in ("per_block", "bulk")}
    return study.sweep(workload, cases, SWAP_LOADS[::3] if study.is_quick else SWAP_LOADS)


def tail_claim(results: Mapping[str, SweepResult]) -> list[PaperClaim]:
    """Return in how many cases the tail is not above either baseline's at the highest rate."""
    ahead = sum(
        all(
            result.ratio("Autellix", base, result.loads[-1], METRICS[metric]).mean <= 1
            for base in ("vLLM tuned", "MLFQ")
        )
        for result in results.values()
        for metric in ("p95", "p99")
    )
    what = "tail not above both baselines' at the highest rate, of 8 cases"
    return [PaperClaim.of(what, "7", str(ahead), is_reached=ahead >= 7, has_direction=ahead > 4)]


def swap_claims(results: Mapping[str, SweepResult]) -> list[PaperClaim]:
    """Return how many fewer swaps there are in bulk, and how much less time they take."""
    (result,) = results.values()
    per_block, bulk = (swap_times_s(result, case, result.loads[-1]) for case in ("per_block", "bulk"))
    ratio = confidence_interval([a / b if b else 1.0 for a, b in zip(per_block, bulk, strict=True)])
    # Block by block, each block is a swap.
    fewer = result.interval("bulk", result.loads[-1], "blocks_per_swap")
    return [
        gain_claim("swaps, fewer by", fewer, 18.0),
        gain_claim("swap time, less by", ratio, 3.0, stated="3-7x"),
    ]


CURVES = (
    Curves(
        name="12",
        title="One engine, mean token latency",
        runs="main",
        sweep=main_sweep,
        gains={
            workload: {
                ("Autellix", base): paper
                for base, paper in zip(("vLLM", "vLLM tuned", "MLFQ"), papers, strict=True)
            }
            # Section 6.3.
            for workload, papers in zip(
                WORKLOADS, ((8, 2, 1.5), (8, 2, 1.5), (5, 2, 2.5), (15, 4, 5.5)), strict=True
            )
        },
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
    ),
    Curves(
        name="13",
        title="One engine, tails of the token latency",
        runs="main",
        sweep=main_sweep,
        metrics=("p95", "p99"),
        gains={name: {("Autellix", "vLLM tuned"): 1.7, ("Autellix", "MLFQ"): 1.7} for name in WORKLOADS},
        more_claims=tail_claim,
        notes=("The same runs as for figure 12.",),
    ),
    Curves(
        name="14",
        title="Balancers on four engines",
        runs="balancers",
        sweep=balancer_sweep,
        metrics=tuple(METRICS),
        gains={
            name: {("locality", "round_robin"): 1.4, ("locality", "least_used"): 1.4}
            for name in ENGINES_LOADS
        },
        notes=(
            (
                f"{ENGINES} engines of the 8B model with a quarter of their KV blocks each; "
                "the paper's second setting, two engines of the 70B model, is not run."
            ),
        ),
    ),
    Curves(
        name="19",
        title="Swaps block by block and in bulk",
        runs="swaps",
        sweep=swap_sweep,
        gains={"chat": {("bulk", "per_block"): 1.3}},
        more_claims=swap_claims,
        notes=(
            (
                f"A copy takes {MEMCPY_LAUNCH_S * 1e6:.0f} us to start, paid {COPIES_PER_BLOCK} times for a "
                "block (keys and values of each layer) or once for a transfer in bulk. The time to gather "
                "blocks on the device is not counted."
            ),
        ),
    ),
)
"""The data of figures 12, 13, 14 and 19."""
