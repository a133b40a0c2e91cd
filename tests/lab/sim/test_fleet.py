"""A fleet that follows a signal: the autoscaler's rule, starts and drains, and no call lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.balance.memory import MemoryReport
from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.fleet import (
    Autoscaler,
    EngineSample,
    Scaling,
    ScalingFleet,
    saturation,
    utilisation,
    waiting,
)
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SCALING = Scaling(signal=waiting, target=10.0, least=1, most=8, window_s=15.0, start_s=30.0, down_s=60.0)
ENGINE = EngineModel(max_num_seqs=4, step_s=0.05, decode_s=0.001, prefill_s=0.0005, kv_blocks=200)


def load_of(name: str = "engine0", *, running: int = 0, waiting: int = 0, **changes: Any) -> EngineLoad:
    load = EngineLoad(
        name=name,
        running=running,
        waiting=waiting,
        slots=4,
        prefill_s_per_token=0.001,
        decode_s_per_token=0.05,
    )
    return replace(load, **changes)


def sample_of(value: int, name: str = "engine0") -> EngineSample:
    return EngineSample(load_of(name, waiting=value), 0.0)


def test_the_signals_are_the_products_saturation_waiting_calls_and_busy_time() -> None:
    memory = MemoryReport(capacity_tokens=100, active_tokens=90, active_programs=3, inactive_tokens=60)
    samples = [
        EngineSample(load_of("a", running=4, waiting=2, memory=memory), 0.25),
        EngineSample(load_of("b", running=2), 1.0),
    ]
    assert saturation(0.0, samples) == {"a": 1.5, "b": 0.5}
    assert waiting(0.0, samples) == {"a": 2.0, "b": 0.0}
    assert utilisation(0.0, samples) == {"a": 0.25, "b": 1.0}


@pytest.mark.parametrize(
    ("value", "present", "wanted"),
    [(31, 1, 4), (200, 3, 8), (0, 1, 1), (32, 3, 3), (28, 3, 3), (34, 3, 4)],
)
def test_engines_are_the_sum_over_the_target_within_bounds_and_tolerance(
    value: int, present: int, wanted: int
) -> None:
    assert Autoscaler(SCALING).engines(0.0, [sample_of(value)], present) == wanted


def test_fewer_engines_must_have_been_enough_for_the_window() -> None:
    autoscaler = Autoscaler(SCALING)
    wanted = [
        autoscaler.engines(now, [sample_of(value)], present=4)
        for now, value in ((0.0, 38), (15.0, 5), (30.0, 25), (60.0, 5), (75.0, 5), (91.0, 5), (106.0, 5))
    ]
    # 40 is wanted until 60 s have passed, then the 3 engines of half a minute count.
    assert wanted == [4, 4, 4, 4, 3, 1, 1]


def test_the_signal_is_the_sum_of_each_engines_mean() -> None:
    """A new engine counts in full at once, and one that left until its last value is old."""
    autoscaler = Autoscaler(replace(SCALING, window_s=30.0, tolerance=0.0, down_s=0.0))
    assert autoscaler.engines(0.0, [sample_of(20, "a")], present=2) == 2
    assert autoscaler.engines(15.0, [sample_of(40, "a"), sample_of(10, "b")], present=2) == 4
    assert autoscaler.engines(30.0, [sample_of(10, "b")], present=4) == 5
    assert autoscaler.engines(45.0, [sample_of(10, "b")], present=4) == 1


def test_the_youngest_engines_drain_and_keep_their_place_until_they_leave() -> None:
    fleet = ScalingFleet(replace(SCALING, down_s=0.0, tolerance=0.0), ["engine0"])

    def review(now: float, *values: tuple[str, int]) -> None:
        loads = {name: (load_of(name, waiting=value), now / 2) for name, value in values}
        fleet.review(now, loads, programs=1)

    review(0.0, ("engine0", 30))
    assert fleet.take_ready(15.0) == []
    assert fleet.take_ready(30.0) == ["engine1", "engine2"]
    review(30.0, ("engine0", 10), ("engine1", 0), ("engine2", 0))
    assert list(fleet.draining) == ["engine2", "engine1"]
    # Their places are taken: no engine starts beside two that drain.
    review(45.0, ("engine0", 30), ("engine1", 0), ("engine2", 0))
    assert [moment.engines for moment in fleet.moments] == [3, 3, 3]
    fleet.on_left("engine2")
    review(60.0, ("engine0", 30), ("engine1", 0))
    last = fleet.moments[-1]
    assert (last.accepting, last.starting, last.draining, last.waiting) == (1, 1, 1, 30)
    # One that has not started is given up first.
    review(75.0, ("engine0", 10), ("engine1", 0))
    assert (fleet.moments[-1].accepting, fleet.moments[-1].starting) == (1, 0)


@pytest.mark.parametrize("changes", [{"least": 0}, {"least": 9}, {"target": 0.0}, {"period_s": float("nan")}])
def test_bad_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(SCALING, **changes)


def chain(number: int) -> ProgramTrace:
    calls = []
    tokens = 200
    for place in range(6):
        calls.append(
            CallTrace(
                id=place,
                parents=(place - 1,) if place else (),
                thread="0",
                prefill_tokens=tokens,
                decode_tokens=40,
                shared_prefix_tokens=tokens - 60 if place else 0,
                prefix_from=place - 1 if place else None,
                gap_before_s=5.0,
            )
        )
        tokens += 100
    return ProgramTrace(source="chain", program_id=str(number), calls=tuple(calls))


def test_a_fleet_grows_and_shrinks_and_loses_no_call() -> None:
    """Programs move in their gaps when their engine drains, and prefill their context once more."""
    times = [
        *poisson_arrivals(60, 2.0, seed=1),
        *(60.0 + time for time in poisson_arrivals(39, 0.15, seed=2)),
        600.0,
    ]
    arrivals = [(time, chain(number)) for number, time in enumerate(times)]
    scaling = replace(SCALING, signal=saturation, target=0.8, least=1, most=4)
    settings = SimSettings(model=ENGINE, scheduler=SchedulerConfig(), scaling=scaling)
    result = simulate(arrivals, settings)
    assert len(result.programs) == 100
    assert sum(program.calls for program in result.programs) == 6 * 100
    engines = [moment.engines for moment in result.fleet]
    assert (engines[0], max(engines), engines[-1]) == (1, 4, 1)
    assert len(result.engines) >= 4
    moved = [program for program in result.programs if program.moves or program.forced_moves]
    assert any(program.forced_moves for program in moved)
    assert all(program.moved_tokens == 0 for program in result.programs if program not in moved)
    assert any(program.moved_tokens for program in moved)
    assert max(moment.waiting for moment in result.fleet) > 0


def test_another_systems_scheduler_has_no_scaling_fleet() -> None:
    with pytest.raises(ValueError, match="scaling fleet"):
        SimSettings(
            model=ENGINE, scheduler=SchedulerConfig(policy="fcfs"), baseline="thunderagent", scaling=SCALING
        )
