"""Runs of a study: made once, kept in a file, and compared with their base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import CLOSED, COMPARED, Sweep, run_sweep
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.sim.study_runs import (
    BASE,
    Block,
    Cell,
    CellRun,
    Pool,
    RunFile,
    cells_of,
    run_blocks,
)
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs

MODEL = EngineModel(
    max_num_seqs=2, token_budget=512, step_s=0.01, decode_s=0.0005, prefill_s=0.0001, kv_blocks=200
)
POOL = Pool(
    [
        fit_program(program, length_scale=0.1, max_context_tokens=500)
        for program in generate_programs("chat", 10, seed=1)
    ],
    5,
)
CELL = Cell(workload="chat", load=2.0)


def run(case: str, seed: int, latency_s: float, cell: Cell = CELL) -> CellRun:
    return CellRun(cell=cell, case=case, seed=seed, metrics=dict.fromkeys(COMPARED, latency_s), code="c")


def settings_of(cell: Cell, case: str) -> SimSettings:
    assert cell.workload == "chat"
    return SimSettings(model=MODEL, scheduler=SchedulerConfig(policy=case))


def make(path: Path, cases: tuple[str, ...], seeds: tuple[int, ...], *, workers: int = 1) -> list[CellRun]:
    block = Block(cells=[CELL, replace(CELL, kv_share=0.5)], cases=cases, seeds=seeds)
    return list(
        run_blocks([block], RunFile(path), pool_of=lambda _: POOL, settings_of=settings_of, workers=workers)
    )


def test_only_runs_that_the_file_lacks_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.jsonl"
    first = make(path, (BASE,), (0, 1))
    second = make(path, (BASE, "plas"), (0, 1, 2))

    assert {(item.cell.kv_share, item.case, item.seed) for item in first} == {
        (share, BASE, seed) for share in (1.0, 0.5) for seed in (0, 1)
    }
    assert {(item.cell.kv_share, item.case, item.seed) for item in second} == {
        (share, case, seed)
        for share in (1.0, 0.5)
        for case, seed in ((BASE, 2), ("plas", 0), ("plas", 1), ("plas", 2))
    }
    assert list(RunFile(path).runs.values()) == first + second
    assert make(path, (BASE, "plas"), (0, 1, 2)) == []


def test_processes_make_the_same_runs(tmp_path: Path) -> None:
    alone = make(tmp_path / "alone", (BASE,), (0,))
    shared = make(tmp_path / "shared", (BASE,), (0,), workers=2)
    assert sorted(alone, key=lambda item: item.cell.kv_share) == sorted(
        shared, key=lambda item: item.cell.kv_share
    )


def test_ratios_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """Seeds of which the base was not run do not count."""
    runs = RunFile(tmp_path / "runs.jsonl")
    for seed, base_s, own_s in ((0, 10.0, 5.0), (1, 1.0, 1.0)):
        runs.add(run(BASE, seed, base_s))
        runs.add(run("plas", seed, own_s))
    runs.add(run("plas", 7, 3.0))

    assert runs.seeds(CELL, "plas") == (0, 1)
    assert [interval.mean for interval in runs.ratios(CELL, "plas")] == [0.75] * 4
    assert runs.ratios(CELL, "plas", ("latency_s.mean",), seeds=(1, 7))[0].mean == 1.0


def test_what_was_not_run_has_no_ratios(tmp_path: Path) -> None:
    runs = RunFile(tmp_path / "runs.jsonl")
    runs.add(run(BASE, 0, 1.0))
    assert runs.ratios(CELL, "plas") == []
    assert runs.ratios(replace(CELL, load=1.0), BASE) == []


def test_a_case_is_behind_those_that_are_better_by_more_than_noise(tmp_path: Path) -> None:
    """Two standard errors of the difference; more calls a minute are better."""
    runs = RunFile(tmp_path / "runs.jsonl")
    seconds = {
        BASE: (10.0, 10.0, 10.0, 10.0),
        "boost": (5.0, 6.0, 7.0, 6.0),
        "always a second": (4.0, 5.0, 6.0, 5.0),
        "always three": (2.0, 3.0, 4.0, 3.0),
        "mostly": (2.0, 3.0, 4.0, 15.0),
        "equal": (5.0, 6.0, 7.0, 6.0),
    }
    for case, by_seed in seconds.items():
        for seed, own_s in enumerate(by_seed):
            own = run(case, seed, own_s)
            runs.add(replace(own, metrics={**own.metrics, "calls_per_min": 60 / own_s}))

    better = runs.behind(CELL, "boost", ("latency_s.mean", "calls_per_min"))
    assert list(better["latency_s.mean"]) == ["always three", "always a second"]
    assert better["latency_s.mean"]["always three"] == pytest.approx(2.0)
    assert list(better["calls_per_min"]) == ["always three", "always a second"]
    assert better["calls_per_min"]["always a second"] > 1
    assert runs.behind(CELL, "always three", ("latency_s.mean",)) == {}
    assert runs.behind(replace(CELL, load=1.0), "boost", ("latency_s.mean",)) == {}


def test_one_seed_shows_no_loss(tmp_path: Path) -> None:
    runs = RunFile(tmp_path / "runs.jsonl")
    for case, own_s in ((BASE, 10.0), ("plas", 1.0), ("boost", 9.0)):
        runs.add(run(case, 0, own_s))
    assert runs.behind(CELL, "boost", ("latency_s.mean",)) == {}


def test_a_study_may_have_another_base(tmp_path: Path) -> None:
    runs = RunFile(tmp_path / "runs.jsonl", base="plas")
    for case, own_s in (("plas", 10.0), ("boost", 5.0)):
        runs.add(run(case, 3, own_s))
    assert runs.seeds(CELL, "boost") == (3,)
    assert runs.values(CELL, "boost", "latency_s.mean") == {3: 0.5}


def test_figures_are_shown_with_the_largest_spread_of_their_seeds(tmp_path: Path) -> None:
    runs = RunFile(tmp_path / "runs.jsonl")
    for seed, (mean_s, p95_s) in enumerate(((4.0, 5.0), (5.0, 5.0), (6.0, 5.0))):
        runs.add(run(BASE, seed, 10.0))
        own = run("plas", seed, mean_s)
        runs.add(replace(own, metrics={**own.metrics, "latency_s.p95": p95_s}))
    metrics = ("latency_s.mean", "latency_s.p95")
    assert runs.figures(CELL, "plas", metrics) == "0.50 0.50 ± 0.10"
    assert runs.figures(CELL, "plas", metrics, seeds=(1, 9)) == "0.50 0.50"
    assert runs.figures(CELL, "boost") == ""


def test_a_closed_loop_has_programs_present_in_place_of_a_load(tmp_path: Path) -> None:
    """Its runs have the calls a minute; with a pool's own rate, a load is a multiple of that."""
    closed = replace(CELL, arrivals=CLOSED, load=2.0)
    pool = replace(POOL, rate_per_s=0.5)
    blocks = [Block(cells=[closed, CELL], cases=(BASE,), seeds=(0,))]
    found = run_blocks(
        blocks, RunFile(tmp_path / "runs.jsonl"), pool_of=lambda _: pool, settings_of=settings_of
    )
    in_loop, arriving = (item.metrics for item in found)

    assert in_loop["calls_per_min"] > 0
    assert "calls_per_min" not in arriving
    sweep = Sweep(
        programs=pool.programs,
        count=pool.count,
        cases={BASE: settings_of(CELL, BASE)},
        loads=(2.0,),
        seeds=(0,),
        rate_per_s=0.5,
    )
    (point,) = run_sweep(sweep).points
    assert (point.rate_per_s, point.metrics["makespan_s"]) == (1.0, arriving["makespan_s"])


def test_the_versions_of_the_code_are_known(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = RunFile(path)
    for seed, code in enumerate(("b", "a", "b")):
        runs.add(replace(run("plas", seed, 1.0), code=code))
    runs.add(replace(run(BASE, 0, 1.0), code="z"))
    assert RunFile(path).codes(["plas"]) == ["a", "b"]


def test_cells_are_all_combinations() -> None:
    cells = cells_of(("chat", "tools"), (0.5, 1.0), (1.0, 0.5), arrivals="at_once")
    assert len(set(cells)) == 8
    assert {cell.arrivals for cell in cells} == {"at_once"}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [({}, "KV 1"), ({"kv_share": 0.25, "shares_prefixes": False}, "KV 0.25, private")],
)
def test_memory_is_told_in_words(changes: dict[str, object], shown: str) -> None:
    assert replace(CELL, **changes).memory == shown  # type: ignore[arg-type]
