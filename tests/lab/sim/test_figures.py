"""The paper's figures: what they compute from sweeps, how they judge, and what they write."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from autellix_lab.sim.experiment import Point, Sweep, SweepResult, run_sweep
from autellix_lab.sim.figures.base import (
    Figure,
    Panel,
    PaperClaim,
    Series,
    Table,
    Verdict,
    judge,
    shown,
)
from autellix_lab.sim.figures.catalogue import FIGURES
from autellix_lab.sim.figures.drawing import draw
from autellix_lab.sim.figures.equal_latency import best_gain, gain_at, rate_at
from autellix_lab.sim.figures.page import page
from autellix_lab.sim.figures.pools import TRACE_FILES, generated_pools, read_pools
from autellix_lab.sim.figures.study import RunSweep, Study, systems
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.statistics import Interval
from autellix_lab.workload.trace import TraceError
from autellix_lab.workload.trace_files import write_traces

CURVE = [(1.0, 10.0), (2.0, 10.0), (4.0, 30.0)]


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(pools=generated_pools(0, share=0.01), seeds=(0,), size=0.2, is_quick=True)


@pytest.fixture(scope="module")
def run_once() -> RunSweep:
    """Run each name once, after checking that sweeps of one name are equal."""
    sweeps: dict[str, Sweep] = {}
    results: dict[str, SweepResult] = {}

    def run(name: str, sweep: Sweep) -> SweepResult:
        assert sweeps.setdefault(name, sweep) == sweep
        if name not in results:
            results[name] = run_sweep(sweep)
        return results[name]

    return run


def sweep_result(curves: dict[str, Sequence[Sequence[float]]]) -> SweepResult:
    """Make a result of loads 1, 2, ... in which the rate is the load, from latencies by case and seed."""
    return SweepResult(
        [
            Point(case, float(load), seed, float(load), {"latency": latency})
            for case, by_seed in curves.items()
            for seed, latencies in enumerate(by_seed)
            for load, latency in enumerate(latencies, start=1)
        ]
    )


# Throughput at equal latency.


@pytest.mark.parametrize(("level", "rate"), [(20.0, 3.0), (30.0, 4.0), (10.5, 2.05)])
def test_a_rate_is_interpolated_between_points(level: float, rate: float) -> None:
    assert rate_at(CURVE, level) == pytest.approx(rate)


@pytest.mark.parametrize("level", [9.0, 31.0], ids=["below", "above"])
def test_a_latency_outside_the_curve_has_no_rate(level: float) -> None:
    assert rate_at(CURVE, level) is None


def test_the_first_of_several_crossings_counts() -> None:
    assert rate_at([(1, 1), (2, 3), (3, 1), (4, 3)], 2) == 1.5


def test_a_gain_is_the_ratio_of_rates_and_none_where_a_curve_stops_short() -> None:
    slow = [(1.0, 20.0), (2.0, 40.0)]

    assert gain_at(CURVE, slow, 20.0) == pytest.approx(3.0)
    assert gain_at(CURVE, slow, 35.0) is None


def test_the_best_gain_is_found_where_the_mean_curves_are_furthest_apart() -> None:
    result = sweep_result({"ours": [[1, 1, 1, 9]], "base": [[1, 5, 9, 13]]})

    gain = best_gain(result, "ours", "base", "latency")

    assert gain is not None
    assert gain.mean == 3.0


def test_a_gain_at_one_latency_is_computed_seed_by_seed() -> None:
    result = sweep_result({"ours": [[1, 2, 3], [1, 3, 5]], "base": [[1, 3, 5], [1, 3, 5]]})

    gain = best_gain(result, "ours", "base", "latency", level=2.0)

    assert gain is not None
    assert gain.mean == pytest.approx((2 / 1.5 + 1) / 2)
    assert gain.half_width > 0


def test_a_latency_that_most_seeds_do_not_reach_has_no_gain() -> None:
    result = sweep_result({"ours": [[1, 9], [1, 2], [1, 2]], "base": [[1, 9], [1, 9], [1, 9]]})

    assert best_gain(result, "ours", "base", "latency", level=4.0) is None


def test_curves_without_a_common_latency_have_no_gain() -> None:
    assert best_gain(sweep_result({"ours": [[1, 2]], "base": [[3, 4]]}), "ours", "base", "latency") is None


# Verdicts.


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (Interval(2.1, 0.5), Verdict.REACHED),
        (Interval(1.5, 0.4), Verdict.DIRECTION),
        (Interval(1.5, 0.6), Verdict.OPEN),
        (Interval(2.5, 1.6), Verdict.OPEN),
        (Interval(1.01, 0.0), Verdict.NOT_REACHED),
        (Interval(1.5, math.inf), Verdict.DIRECTION),
        (Interval(0.8, 0.1), Verdict.NOT_REACHED),
        (None, Verdict.NOT_BRACKETED),
    ],
)
def test_a_gain_is_judged_by_its_mean_and_interval(ours: Interval | None, verdict: Verdict) -> None:
    assert judge(ours, 2.0) is verdict


def test_a_single_run_is_shown_without_an_interval() -> None:
    assert [shown(Interval(1.234, 0.5)), shown(Interval(1.234, math.inf), unit="x"), shown(None)] == [
        "1.23 ± 0.50",
        "1.23x",
        "not bracketed",
    ]


# Figures.


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_points_in_all_its_series(name: str, study: Study, run_once: RunSweep) -> None:
    figure = FIGURES[name](study, run_once)

    assert figure.name == name
    assert figure.panels or figure.tables
    for panel in figure.panels:
        if name != "15":
            assert all(series.points for series in panel.series), panel.title
    for table in figure.tables:
        assert all(len(row) == len(table.header) for row in table.rows), table.title


def test_all_systems_have_the_same_levels_and_only_vllm_has_no_cache(study: Study) -> None:
    cases = systems(study, "mixed")

    assert len({case.scheduler.bounds for case in cases.values()}) == 1
    assert [name for name, case in cases.items() if not case.model.has_prefix_cache] == ["vLLM"]
    assert {name: case.scheduler.policy for name, case in cases.items()} == {
        "vLLM tuned": "fcfs",
        "vLLM": "fcfs",
        "MLFQ": "mlfq",
        "Autellix": "atlas",
        "Autellix, PLAS": "plas",
    }


# Programs.


def test_real_traces_are_drawn_without_gaps_and_mixed_in_equal_shares(tmp_path: Path) -> None:
    for workload, names in TRACE_FILES.items():
        for seed, name in enumerate(names):
            write_traces(tmp_path / name, generate_programs(workload, 30, seed, tree_scale=0.05))

    pools = read_pools(tmp_path, seed=0, share=0.05)

    assert {workload: len(programs) for workload, programs in pools.items()} == {
        "chat": 60,
        "react": 30,
        "tree": 20,
        "mixed": 21,
    }
    sources = [program.source for program in pools["mixed"]]
    assert all(sources.count(f"generated_{kind}") == 7 for kind in TRACE_FILES)
    assert all(call.gap_before_s == 0 for program in pools["chat"] for call in program.calls)


def test_a_missing_trace_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"sharegpt_en\.jsonl\.gz"):
        read_pools(tmp_path, seed=0)


# Output.


def small_figure() -> Figure:
    points = tuple((float(x), Interval(random.Random(x).random(), math.inf)) for x in range(3))
    lines = Panel("lines", "x", "y", (Series("a", points),), is_log_y=True)
    return Figure(
        name="12",
        title="Title",
        panels=(lines, lines),
        claims=(PaperClaim("gain", "2x", "1.5x", Verdict.DIRECTION),),
        tables=(Table("Rows", ("a", "b"), (("1", "2"),)),),
        notes=("A note.",),
    )


def test_a_picture_is_written_small(tmp_path: Path) -> None:
    draw(small_figure(), tmp_path / "figure.png")

    content = (tmp_path / "figure.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 80_000


def test_a_figure_without_panels_writes_no_picture(tmp_path: Path) -> None:
    draw(Figure(name="1", title="Empty"), tmp_path / "figure.png")

    assert list(tmp_path.iterdir()) == []


def test_the_page_has_claims_pictures_tables_and_notes(study: Study) -> None:
    text = page([small_figure()], study, "made up", {"12": "paper/figure-12.png"})

    assert "| 12 | gain | 2x | 1.5x | direction equal |" in text
    assert "![Figure 12: Title](paper/figure-12.png)" in text
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |" in text
    assert "A note." in text
    assert "measures nothing" in text
