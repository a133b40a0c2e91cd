"""Sweeps: what is shared between runs, and how runs become numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import (
    Point,
    Sweep,
    SweepResult,
    drain_rate_per_s,
    draw_bursts,
    pick,
    run_sweep,
    summarise_runs,
)
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate_bursts
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import CallTrace, ProgramTrace

MODEL = EngineModel(max_num_seqs=4, token_budget=512, step_s=0.01, decode_s=0.0005, prefill_s=0.0001)
PROGRAMS = [
    fit_program(program, length_scale=0.1, max_context_tokens=500)
    for program in generate_programs("chat", 40, seed=1)
]


def settings(policy: str) -> SimSettings:
    return SimSettings(model=MODEL, scheduler=SchedulerConfig(policy=policy, bounds=(0.2, 0.8, 3.2)))


CASES = {policy: settings(policy) for policy in ("fcfs", "plas", "srpt")}


def sweep(**changes: object) -> Sweep:
    base = Sweep(programs=PROGRAMS, count=30, cases=CASES, loads=(0.5, 2.0), seeds=(0, 1))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_runs_of_one_seed_share_programs_and_arrivals() -> None:
    result = run_sweep(sweep())
    assert [(p.case, p.load, p.seed) for p in result.points] == [
        (case, load, seed) for load in (0.5, 2.0) for case in CASES for seed in (0, 1)
    ]
    rates = {
        (p.load, p.seed): {q.rate_per_s for q in result.points if (q.load, q.seed) == (p.load, p.seed)}
        for p in result.points
    }
    assert all(len(found) == 1 for found in rates.values())
    assert len({next(iter(found)) for found in rates.values()}) == 4


def test_the_clairvoyant_policy_wins_under_load_and_all_are_equal_without_load() -> None:
    result = run_sweep(sweep(loads=(0.3, 3.0), seeds=(0, 1, 2)))
    mean = "token_latency_s.mean"
    assert result.interval("srpt", 3.0, mean).mean < result.interval("plas", 3.0, mean).mean
    assert result.interval("plas", 3.0, mean).mean < result.interval("fcfs", 3.0, mean).mean
    assert result.ratio("plas", "fcfs", 0.3, mean).mean == pytest.approx(1.0, abs=0.1)


def test_parallel_sweeps_equal_serial_ones() -> None:
    alone = run_sweep(sweep(loads=(2.0,)))
    seen: list[Point] = []
    together = run_sweep(sweep(loads=(2.0,)), workers=2, on_point=seen.append)
    assert together.points == alone.points
    assert len(seen) == len(alone.points)


def test_a_load_of_one_is_the_capacity_of_full_batches() -> None:
    """Equal programs of one call, all there at once, keep every batch full and leave at exactly that rate."""
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=10, decode_tokens=50)
    programs = [ProgramTrace(source="s", program_id=str(index), calls=(call,)) for index in range(40)]
    at_once = sweep(programs=programs, count=40, arrivals="at_once", loads=(1.0,), seeds=(5,))
    point = run_sweep(at_once).points[0]
    assert point.rate_per_s == drain_rate_per_s(programs, settings("plas"))
    assert point.metrics["programs_per_s"] == pytest.approx(point.rate_per_s, rel=0.02)


def test_programs_repeat_only_when_there_are_no_others() -> None:
    ids = [program.program_id for program in pick(PROGRAMS, 60, 0)]
    assert len(set(ids[:40])) == 40
    assert len(ids) == 60
    assert ids == [program.program_id for program in pick(PROGRAMS, 60, 0)]
    assert ids != [program.program_id for program in pick(PROGRAMS, 60, 1)]


def test_ratios_are_taken_seed_by_seed() -> None:
    points = [
        Point(case, 1.0, seed, 1.0, {"m": value})
        for case, values in {"a": (1.0, 3.0), "b": (2.0, 12.0)}.items()
        for seed, value in enumerate(values)
    ]
    result = SweepResult(points)
    assert result.ratio("b", "a", 1.0, "m").mean == 3.0
    assert summarise_runs(result, ["m"])[0] == {
        "load": 1.0,
        "case": "a",
        "m": {"mean": 2.0, "half_width": pytest.approx(12.706)},
    }


def test_latencies_of_bursts_do_not_grow_with_the_run() -> None:
    """Beyond saturation a steady load's queue grows, and that of bursts empties in between."""
    latency_s = {
        (arrivals, count): run_sweep(
            sweep(arrivals=arrivals, burst=15, count=count, loads=(4.0,), seeds=(0, 1, 2))
        )
        .interval("fcfs", 4.0, "latency_s.mean")
        .mean
        for arrivals in ("poisson", "burst_idle")
        for count in (15, 120)
    }
    assert latency_s["burst_idle", 15] == latency_s["poisson", 15]
    assert latency_s["burst_idle", 120] == pytest.approx(latency_s["burst_idle", 15], rel=0.35)
    assert latency_s["poisson", 120] > 3 * latency_s["burst_idle", 120]


def test_a_burst_waits_for_the_end_of_the_one_before() -> None:
    bursts = draw_bursts("burst_idle", PROGRAMS[:10], 5.0, 1, 4)
    assert [len(list(burst)) for burst in bursts] == [4, 4, 2]
    assert [program for burst in bursts for _, program in burst] == PROGRAMS[:10]

    records = simulate_bursts(bursts, settings("plas")).programs

    ends_s = [max(record.finish_s for record in records[start : start + 4]) for start in (0, 4, 8)]
    starts_s = [min(record.arrival_s for record in records[start : start + 4]) for start in (0, 4, 8)]
    assert starts_s == [0.0, *ends_s[:2]]


def test_a_seed_alone_has_no_interval() -> None:
    assert run_sweep(sweep(seeds=(0,), loads=(1.0,))).interval("fcfs", 1.0, "jain").half_width == math.inf


@pytest.mark.parametrize("arrivals", ["bursty", "at_once"])
def test_other_arrivals(arrivals: str) -> None:
    points = run_sweep(sweep(arrivals=arrivals, loads=(1.0,), seeds=(0,))).points
    assert {point.metrics["peak_programs"] >= 1 for point in points} == {True}


def test_a_shared_prefix_counts_once_in_the_load() -> None:
    """With private prefixes every program pays for its own."""
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=1000, decode_tokens=1)
    programs = [
        ProgramTrace(source="s", program_id=str(index), calls=(call,), system_prefix_tokens=900)
        for index in range(10)
    ]
    shared = settings("fcfs")
    work_s = [
        10 / drain_rate_per_s(programs, case) for case in (shared, replace(shared, shares_prefixes=False))
    ]
    assert work_s[1] - work_s[0] == pytest.approx(9 * 900 * MODEL.prefill_s)


def test_a_load_of_one_counts_the_contexts_that_are_read() -> None:
    """Full batches leave at the rate of the load also where the cost of a step follows its contexts."""
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=100, decode_tokens=101)
    programs = [ProgramTrace(source="s", program_id=str(index), calls=(call,)) for index in range(40)]
    model = replace(MODEL, context_s=0.0001)
    at_once = sweep(
        programs=programs,
        count=40,
        cases={"fcfs": replace(settings("fcfs"), model=model)},
        arrivals="at_once",
        loads=(1.0,),
        seeds=(5,),
    )
    point = run_sweep(at_once).points[0]
    assert point.metrics["programs_per_s"] == pytest.approx(point.rate_per_s, rel=0.02)
