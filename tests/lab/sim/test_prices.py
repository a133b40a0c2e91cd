"""What a simulated engine learns of its own prices, against those of its model."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.statistics import SAMPLE_FADING
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.simulation import SimSettings, _Simulation
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.generate import generate_programs

NEAR = 0.3
"""The most by which a learned price may be off: steps with prefill also decode more than others."""
RATES = {"coding": 0.01, "chat": 2.0}
"""Programs per second."""
COUNTS = {"coding": 2, "chat": 15}


@pytest.mark.parametrize("workload", RATES)
@pytest.mark.parametrize("preset", [name for name, model in PRESETS.items() if not model.has_equal_steps])
def test_a_prefill_is_priced_by_what_it_adds_to_steps(
    preset: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added_s = tokens = 0.0
    step_time_s = EngineModel.step_time_s

    def spied(model: EngineModel, decodes: int, prefilled: int, *more: Any) -> float:
        nonlocal added_s, tokens
        seconds = step_time_s(model, decodes, prefilled, *more)
        if prefilled:
            pairs = more[2]
            added_s = added_s * SAMPLE_FADING + prefilled * model.prefill_s + pairs * model.prefill_context_s
            tokens = tokens * SAMPLE_FADING + prefilled
        return seconds

    programs = generate_programs(workload, COUNTS[workload], 0)
    arrivals = zip(poisson_arrivals(len(programs), RATES[workload], 0), programs, strict=True)
    simulation = _Simulation(SimSettings(model=PRESETS[preset], scheduler=SchedulerConfig()))
    monkeypatch.setattr(EngineModel, "step_time_s", spied)
    simulation.run([list(arrivals)])

    machine = simulation._engines["engine0"].machine
    assert machine.prefill.token_s == pytest.approx(added_s / tokens, rel=NEAR)
