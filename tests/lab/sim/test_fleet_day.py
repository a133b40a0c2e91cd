"""The day of a scaling fleet: its arrivals, the choice of a target, and what it compares."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.sim.fleet import FleetMoment
from autellix_lab.sim.results import ProgramRecord, SimResult

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MOMENT = FleetMoment(
    now=0.0, accepting=2, starting=1, draining=0, programs=4, running=3, waiting=2, saturation=1.5
)
PROGRAM = ProgramRecord(
    program_id="0",
    source="s",
    arrival_s=0.0,
    finish_s=10.0,
    path_s=10.0,
    calls=4,
    output_tokens=50,
    prompt_tokens=1000,
    cached_tokens=900,
    loaded_tokens=0,
    recomputed_tokens=0,
    wait_s=2.0,
    service_s=5.0,
    preemptions=0,
)


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark's module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fleet_day

    return fleet_day


def test_a_day_has_its_hourly_rates(day: Any) -> None:
    times = day.day_times([number / 10_000 for number in range(10_001)], hours=12.0)
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.0, pytest.approx(12 * 3600))
    hours = [sum(int(time // 1800) == hour for time in times) for hour in range(24)]
    expected = [10_000 * rate / sum(day.HOURLY) for rate in day.HOURLY]
    assert hours == pytest.approx(expected, abs=2)
    assert day.day_rate(9.5 * 1800, 12.0) == day.HOURLY[9]
    assert day.day_rate(12 * 3600, 12.0) == day.HOURLY[0]


def test_the_cheapest_target_within_the_slack_is_chosen(day: Any) -> None:
    runs = {
        0.5: {"latency_s.mean": 100.0, "engine_hours": 70.0},
        0.8: {"latency_s.mean": 109.0, "engine_hours": 60.0},
        0.9: {"latency_s.mean": 120.0, "engine_hours": 50.0},
    }
    assert day.chosen_target(runs, 100.0) == 0.8
    assert day.chosen_target(runs, 50.0) == 0.5


def test_the_need_is_a_minutes_mean_within_bounds(day: Any) -> None:
    assert day.need_of([0.0, 0.0, 8.0, 8.0, 8.0, 20.0, 20.0, 20.0]) == [2, 2, 3, 4, 6, 8, 8, 8]


def test_hours_above_and_below_and_the_lead_of_an_engine(day: Any) -> None:
    assert day.difference_hours([3, 5, 2], [2, 2, 4], period_s=3600.0) == (4.0, 2.0)
    assert day.lead_minutes([2, 2, 5], [2, 5, 5], 5, period_s=60.0) == -1.0
    assert day.lead_minutes([2, 2, 2], [2, 5, 5], 5) == -math.inf


def test_the_figures_of_a_day(day: Any) -> None:
    programs = [
        PROGRAM,
        replace(PROGRAM, finish_s=30.0, moves=2, returns=1, forced_moves=1, moved_tokens=100),
    ]
    moments = [MOMENT, replace(MOMENT, now=3600.0, starting=0), replace(MOMENT, now=7200.0, starting=0)]
    figures = day.figures_of(programs, moments)
    assert figures["latency_s.mean"] == 20.0
    assert figures["engine_hours"] == 5.0
    assert figures["changes"] == 1.0
    assert figures["moved_programs"] == 0.5
    assert (figures["moves_per_call"], figures["returns_per_call"]) == (0.25, 0.125)
    assert (figures["forced_moves"], figures["most_moves"]) == (1.0, 2.0)
    assert figures["moved_token_share"] == 0.05
    assert figures["computed_share"] == pytest.approx(0.1)
    assert [part["engines"] for part in day.hourly_of(moments, hours=12.0)] == [3.0, 2.0, 2.0]


def test_a_run_is_made_once(day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = []

    def play(_: Path, case: Any) -> SimResult:
        cases.append(case)
        return SimResult([PROGRAM, PROGRAM], [], 10.0, 1, None, [MOMENT, replace(MOMENT, now=15.0)])

    monkeypatch.setattr(day, "play", play)
    wanted = day.DayCase(workload="coding", signal="saturation", target=0.8, seed=1)
    made = day.DayRuns(tmp_path / "runs.jsonl").make(tmp_path, wanted)
    assert day.DayRuns(tmp_path / "runs.jsonl").make(tmp_path, wanted) == made
    assert cases == [wanted]
    assert made["engines"] == [3, 3]


def test_each_signal_and_fixed_number_is_a_fleet(day: Any) -> None:
    case = day.DayCase(workload="coding", signal="fixed", target=6.0, seed=0)
    fixed = day.scaling_of(case, 12.0)
    assert (fixed.least, fixed.most) == (6, 6)
    known = day.scaling_of(replace(case, signal="known", target=0.8), 12.0)
    # The rate of 8 to 9 counts two and a half minutes before.
    assert known.signal(8 * 1800 - 151.0, []) == {"": pytest.approx(6 * 0.6)}
    assert known.signal(8 * 1800 - 149.0, []) == {"": pytest.approx(6 * 0.9)}
    assert day.scaling_of(replace(case, signal="waiting", target=2.0), 12.0).signal is day.waiting
