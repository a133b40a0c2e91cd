"""Figures 16, 17 and 19: offline batches, waiting and swapping, and swaps, where KV blocks are scarce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autellix_lab.sim.experiment import Sweep, SweepResult, pick
from autellix_lab.sim.figures.base import (
    Figure,
    Panel,
    PaperClaim,
    Series,
    Table,
    Verdict,
    gain_claim,
    judge,
    shown,
)
from autellix_lab.sim.figures.equal_latency import best_gain
from autellix_lab.sim.figures.latency import RATE_LABEL, rate_series, ratio_of
from autellix_lab.sim.figures.study import POLICIES, TITLES, RunSweep, Study
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import LLAMA_31_8B, MEMCPY_LAUNCH_S
from autellix_lab.workload.statistics import Interval, confidence_interval

SLOTS = 64
KV_SHARE = 0.125
"""Share of the engine's KV blocks beside these slots: blocks run out before slots do."""
COPIES_PER_BLOCK = 2 * LLAMA_31_8B.layers
"""vLLM 0.6.1 keeps keys and values of each layer apart, and copies each part of a block by itself."""

OFFLINE_FACTORS = (1.0, 2.0, 4.0)
PAPER_OFFLINE = (0.10, 0.40)
TIMING_LOADS = {"chat": 1.2, "tree": 1.2}
SWAP_LOADS = (0.5, 0.8, 1.1, 1.5)
PAPER_TRANSFERS, PAPER_SWAP_TIMES, PAPER_SWAP_THROUGHPUT = 18.0, (3.0, 7.0), 1.3

MEAN = "token_latency_s.mean"


def figure_16(study: Study, run: RunSweep) -> Figure:
    """Play growing batches of programs that all arrive at the start."""
    policies = {"vLLM tuned": "fcfs", "MLFQ": "mlfq", "Autellix": "plas"}
    model = _scarce(study, "bulk")
    cases = {name: study.case("chat", policy, model) for name, policy in policies.items()}
    factors = OFFLINE_FACTORS[:1] if study.is_quick else OFFLINE_FACTORS
    ratios: dict[str, list[tuple[float, Interval]]] = {"Autellix": [], "MLFQ": []}
    rows, against_mlfq = [], []
    for factor in factors:
        count = study.count("chat", factor)
        sweep = study.sweep("chat", cases, (1.0,), factor=factor, arrivals="at_once")
        result = run(f"offline: {count}", sweep)
        for case, points in ratios.items():
            points.append((float(count), result.ratio(case, "vLLM tuned", 1.0, "makespan_s")))
        against_mlfq.append(result.ratio("Autellix", "MLFQ", 1.0, "makespan_s"))
        makespans = (shown(result.interval(case, 1.0, "makespan_s"), digits=0) for case in policies)
        preemptions = (
            shown(result.interval(case, 1.0, "preemptions_per_call")) for case in ("MLFQ", "Autellix")
        )
        rows.append((str(count), *makespans, *preemptions))
    claims = [
        _saving_claim("makespan of Autellix against tuned vLLM", [ratio for _, ratio in ratios["Autellix"]]),
        _saving_claim("makespan of Autellix against MLFQ", against_mlfq),
        PaperClaim(
            "MLFQ runs out of memory at 4000 programs",
            "out of memory",
            "the simulated host has no end",
            Verdict.NOT_SIMULATED,
        ),
    ]
    series = tuple(Series(case, tuple(points)) for case, points in ratios.items())
    return Figure(
        name="16",
        title="Offline batches",
        panels=(Panel(TITLES["chat"], "programs", "makespan, ratio to tuned vLLM", series),),
        claims=tuple(claims),
        tables=(
            Table(
                "Makespan (s), and preemptions per call",
                ("programs", "vLLM tuned", "MLFQ", "Autellix", "MLFQ, preemptions", "Autellix, preemptions"),
                tuple(rows),
            ),
        ),
        notes=(_memory_note(study.model), "Preempted calls are swapped; all three use the bulk transfer."),
    )


def figure_17(study: Study, run: RunSweep) -> Figure:
    """Split the time of a call outside the model: waiting for a slot, and steps delayed by swaps."""
    panels, claims, rows = [], [], []
    for workload, load in TIMING_LOADS.items():
        result = run(f"timing: {workload}", _timing(study, workload, load))
        times = _per_call(study, workload, load, result)
        names = tuple(times)
        for position, kind in enumerate(("waiting", "swapping")):
            points = tuple((float(index), times[name][position]) for index, name in enumerate(names))
            title, series = f"{TITLES[workload]}, {kind}", (Series(kind, points),)
            panels.append(Panel(title, "", "seconds per call", series, is_bars=True, groups=names))
        for name, (wait, swap) in times.items():
            rows.append((workload, name, shown(wait), shown(swap, digits=4)))
        claims += _timing_claims(workload, times)
    claims.append(
        PaperClaim(
            "scheduling cost below MLFQ's",
            "lower",
            "measured live: benchmarks/scheduler_overhead.py",
            Verdict.NOT_SIMULATED,
        )
    )
    return Figure(
        name="17",
        title="Waiting and swapping per call",
        panels=tuple(panels),
        claims=tuple(claims),
        tables=(Table("Seconds per call", ("workload", "system", "waiting", "swapping"), tuple(rows)),),
        notes=(
            _memory_note(study.model),
            (
                "Tuned vLLM and MLFQ copy block by block, Autellix in bulk. Swapping is the time by which "
                "swaps delay engine steps, over the number of calls."
            ),
        ),
    )


def figure_19(study: Study, run: RunSweep) -> Figure:
    """Swap block by block, or gathered into one transfer for each call."""
    sweep = _swaps(study)
    result = run("swaps", sweep)
    load = max(sweep.loads)
    model = sweep.cases["bulk"].model
    blocks, transfers, swap_ratio = _swap_counts(result, load, study, model)
    throughput = ratio_of(best_gain(result, "bulk", "per_block", MEAN))
    low, high = PAPER_SWAP_TIMES
    times = shown(swap_ratio, unit="x")
    return Figure(
        name="19",
        title="Swaps block by block and in bulk",
        panels=(
            Panel(TITLES["chat"], RATE_LABEL, "token latency (s/token)", rate_series(result, MEAN)),
            Panel(
                "share of the engine's time spent on swaps",
                RATE_LABEL,
                "share",
                rate_series(result, "swap_share"),
            ),
        ),
        claims=(
            gain_claim("transfers, fewer by", blocks, PAPER_TRANSFERS),
            PaperClaim("swap time, less by", f"{low:g}-{high:g}x", times, judge(swap_ratio, low)),
            gain_claim("throughput at the same mean latency", throughput, PAPER_SWAP_THROUGHPUT, bound=""),
        ),
        tables=(
            Table(
                "At the highest rate, per swap",
                ("transfers, per_block (one for a block)", "transfers, bulk"),
                ((shown(transfers), "1"),),
            ),
        ),
        notes=(
            _memory_note(study.model),
            (
                "The number of transfers is counted; their time follows from two constants: a block's bytes "
                f"over the link ({model.swap_block_s * 1e6:.0f} us) and a copy's start "
                f"({MEMCPY_LAUNCH_S * 1e6:.0f} us), paid {COPIES_PER_BLOCK} times for a block (keys and "
                "values of each layer) or once for a transfer in bulk. The time to gather blocks on the "
                "device is not counted."
            ),
        ),
    )


def _scarce(study: Study, swap: str) -> EngineModel:
    copies = COPIES_PER_BLOCK if swap == "per_block" else 1
    return replace(
        study.model.with_kv(KV_SHARE),
        max_num_seqs=SLOTS,
        resume="swap",
        swap=swap,
        swap_transfer_s=copies * MEMCPY_LAUNCH_S,
    )


def _memory_note(model: EngineModel) -> str:
    blocks = "unlimited" if model.kv_blocks is None else f"{int(model.kv_blocks * KV_SHARE):,}"
    return f"{SLOTS} slots and {blocks} KV blocks, so that blocks run out before slots do."


def _timing(study: Study, workload: str, load: float) -> Sweep:
    cases = {"vLLM tuned": ("fcfs", "per_block"), "MLFQ": ("mlfq", "per_block")}
    cases["Autellix"] = (POLICIES[workload], "bulk")
    settings = {
        name: study.case(workload, policy, _scarce(study, swap)) for name, (policy, swap) in cases.items()
    }
    return study.sweep(workload, settings, (load,))


def _swaps(study: Study) -> Sweep:
    cases = {swap: study.case("chat", "plas", _scarce(study, swap)) for swap in ("per_block", "bulk")}
    return study.sweep("chat", cases, SWAP_LOADS[::3] if study.is_quick else SWAP_LOADS)


def _per_call(
    study: Study, workload: str, load: float, result: SweepResult
) -> Mapping[str, tuple[Interval, Interval]]:
    """Return waiting and swapping (s per call) of each system."""
    count = study.count(workload)
    calls = [
        sum(len(program.calls) for program in pick(study.pools[workload], count, seed))
        for seed in study.seeds
    ]
    times = {}
    for case in result.cases:
        waits = result.values(case, load, "wait_s.mean")
        swaps = _swap_times_s(result, case, load)
        times[case] = (
            confidence_interval([wait * count / n for wait, n in zip(waits, calls, strict=True)]),
            confidence_interval([swap / n for swap, n in zip(swaps, calls, strict=True)]),
        )
    return times


def _swap_times_s(result: SweepResult, case: str, load: float) -> list[float]:
    columns = (result.values(case, load, name) for name in ("swap_share", "utilisation", "makespan_s"))
    return [share * busy * makespan for share, busy, makespan in zip(*columns, strict=True)]


def _timing_claims(workload: str, times: Mapping[str, tuple[Interval, Interval]]) -> list[PaperClaim]:
    ours = times["Autellix"]
    claims = []
    for base in ("vLLM tuned", "MLFQ"):
        for position, kind in enumerate(("waiting", "swapping")):
            falls = ours[position].mean < times[base][position].mean
            claims.append(
                PaperClaim(
                    f"{workload}: {kind} per call, Autellix against {base}",
                    "falls",
                    f"{times[base][position].mean:.4g} s -> {ours[position].mean:.4g} s",
                    Verdict.REACHED if falls else Verdict.NOT_REACHED,
                )
            )
    return claims


def _saving_claim(what: str, ratios: list[Interval]) -> PaperClaim:
    low, high = PAPER_OFFLINE
    savings = [1 - ratio.mean for ratio in ratios]
    least, most = min(savings), max(savings)
    verdict = Verdict.REACHED if least >= low else Verdict.DIRECTION if least > 0 else Verdict.NOT_REACHED
    ours = f"{-least:+.1%} to {-most:+.1%}" if len(savings) > 1 else f"{-least:+.1%}"
    return PaperClaim(what, f"-{low:.0%} to -{high:.0%}", ours, verdict)


def _swap_counts(
    result: SweepResult, load: float, study: Study, model: EngineModel
) -> tuple[Interval, Interval, Interval]:
    """Return how many times fewer transfers bulk makes, blocks per swap, and how much less time it takes.

    Each preempted call is swapped twice, out and in; a transfer in bulk is one of them.
    """
    count = study.count("chat")
    pools = [pick(study.pools["chat"], count, seed) for seed in study.seeds]
    calls = [sum(len(program.calls) for program in programs) for programs in pools]
    swaps = {
        case: [
            2 * share * n
            for share, n in zip(result.values(case, load, "preemptions_per_call"), calls, strict=True)
        ]
        for case in ("per_block", "bulk")
    }
    times = {case: _swap_times_s(result, case, load) for case in swaps}
    block_s = COPIES_PER_BLOCK * MEMCPY_LAUNCH_S + model.swap_block_s
    blocks = [time_s / block_s for time_s in times["per_block"]]
    return (
        confidence_interval([_over(a, b) for a, b in zip(blocks, swaps["bulk"], strict=True)]),
        confidence_interval([_over(a, b) for a, b in zip(blocks, swaps["per_block"], strict=True)]),
        confidence_interval([_over(a, b) for a, b in zip(times["per_block"], times["bulk"], strict=True)]),
    )


def _over(value: float, base: float) -> float:
    return value / base if base else 1.0
