"""The shared setting of all figures: programs, engine, size of the runs and compared systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.bounds import choose_bounds
from autellix_lab.sim.experiment import Sweep, SweepResult
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.presets import PRESETS
from autellix_lab.sim.simulation import SimSettings
from autellix_lab.workload.trace import ProgramTrace

RunSweep = Callable[[str, Sweep], SweepResult]
"""Runs a sweep; two sweeps of one name are the same and may be run once."""

WORKLOADS = ("chat", "react", "tree", "mixed")
POLICIES = {"chat": "plas", "react": "plas", "tree": "atlas", "mixed": "atlas"}
"""The policy that the paper uses for each workload."""
TITLES = {"chat": "chat (ShareGPT)", "react": "react (BFCL)", "tree": "tree (LATS)", "mixed": "mixed"}

MODEL = "llama3.1-8b-a100"
SLOTS = 16
"""Batch size: small, so that a run needs few programs to fill it."""

COUNTS = {"chat": 300, "react": 300, "tree": 60, "mixed": 120}
"""Programs of one run on one engine."""
LOADS = {
    "chat": (0.1, 0.3, 0.7, 1.0, 1.4),
    "react": (0.05, 0.2, 0.6, 1.0, 1.4),
    "tree": (0.1, 0.3, 0.7, 1.0, 1.4),
    "mixed": (0.05, 0.2, 0.6, 1.0, 1.4),
}
"""Offered loads (see `sim.experiment`); the lowest are for vLLM without a cache, which saturates early."""
QUICK_COUNTS = {"chat": 40, "react": 40, "tree": 6, "mixed": 12}
QUICK_LOADS = {name: (loads[0], loads[-1]) for name, loads in LOADS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Size and setting of the runs."""

    pools: Mapping[str, Sequence[ProgramTrace]]
    """The programs that each seed picks from, by workload."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    size: float = 1.0
    """Factor on the number of programs of each run."""
    is_quick: bool = False
    """A few programs at two loads: a check that all parts work, not a measurement."""
    model: EngineModel = field(default_factory=lambda: replace(PRESETS[MODEL], max_num_seqs=SLOTS))

    def count(self, workload: str, factor: float = 1.0) -> int:
        """Return the programs of one run."""
        counts = QUICK_COUNTS if self.is_quick else COUNTS
        return max(2, round(counts[workload] * self.size * factor))

    def loads(self, workload: str) -> tuple[float, ...]:
        """Return the offered loads of the main figures."""
        return (QUICK_LOADS if self.is_quick else LOADS)[workload]

    def case(
        self, workload: str, policy: str, model: EngineModel | None = None, **settings: Any
    ) -> SimSettings:
        """Return a policy's settings for a workload; all policies of a comparison have the same bounds."""
        model = model or self.model
        return SimSettings(model=model, scheduler=scheduler(policy, self.pools[workload], model), **settings)

    def sweep(
        self,
        workload: str,
        cases: Mapping[str, SimSettings],
        loads: Sequence[float],
        *,
        factor: float = 1.0,
        arrivals: str = "poisson",
    ) -> Sweep:
        """Return a sweep of cases; `factor` is on the number of programs of a run."""
        return Sweep(
            programs=self.pools[workload],
            count=self.count(workload, factor),
            cases=cases,
            loads=loads,
            seeds=self.seeds,
            arrivals=arrivals,
        )


def scheduler(policy: str, programs: Sequence[ProgramTrace], model: EngineModel) -> SchedulerConfig:
    """Return a policy's configuration for these programs on this engine, as in the paper."""
    return SchedulerConfig(policy=policy, bounds=choose_bounds(model, programs), preemption="always")


def systems(study: Study, workload: str) -> dict[str, SimSettings]:
    """Return the four systems of the main comparison, and PLAS where the paper uses ATLAS."""
    cases = {
        "vLLM tuned": study.case(workload, "fcfs"),
        "vLLM": study.case(workload, "fcfs", replace(study.model, has_prefix_cache=False)),
        "MLFQ": study.case(workload, "mlfq"),
        "Autellix": study.case(workload, POLICIES[workload]),
    }
    if POLICIES[workload] != "plas":
        cases["Autellix, PLAS"] = study.case(workload, "plas")
    return cases
