"""Clients of whom the scheduler knows less: those that send no identity, and those that announce no ends."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.experiment import measure
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.generate import generate_programs

RATES = {"chat": 1.2, "react": 0.6}
"""Programs per second, somewhat beyond saturation."""
PROGRAMS = 40


def figures(workload: str, policy: str, **clients: Any) -> tuple[float, float]:
    """Return the mean and the 95th percentile of program latency."""
    programs = generate_programs(workload, PROGRAMS, 0)
    arrivals = list(zip(poisson_arrivals(len(programs), RATES[workload], 0), programs, strict=True))
    model = EngineModel(max_num_seqs=8, kv_blocks=20_000, step_s=0.01, decode_s=0.0005, prefill_s=0.0001)
    found = measure(
        simulate(arrivals, SimSettings(model=model, scheduler=SchedulerConfig(policy=policy), **clients))
    )
    return found["latency_s.mean"], found["latency_s.p95"]


@pytest.mark.parametrize("workload", RATES)
def test_nobody_is_worse_off_than_first_come_first_served(workload: str) -> None:
    base = figures(workload, "fcfs")
    # Without any identity, the order is that of arrivals, whatever clients announce.
    for end_delay_s in (0.0, None):
        found = figures(workload, "boost", unidentified_share=1.0, end_delay_s=end_delay_s)
        assert found == pytest.approx(base)
    for share, bound in ((0.0, 1.05), (0.5, 1.1)):
        found = figures(workload, "boost", unidentified_share=share, end_delay_s=None)
        assert max(one / other for one, other in zip(found, base, strict=True)) <= bound, share


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(ValueError, match="unidentified_share"):
        SimSettings(model=EngineModel(), scheduler=SchedulerConfig(), unidentified_share=share)
