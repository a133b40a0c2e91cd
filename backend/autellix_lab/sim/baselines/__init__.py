"""The schedulers of other systems, by their published rules; simulated only."""

from __future__ import annotations

from autellix_lab.sim.baselines.base import Baseline
from autellix_lab.sim.baselines.continuum import Continuum
from autellix_lab.sim.baselines.llm_d import LeastAttainedService
from autellix_lab.sim.baselines.thunder_agent import ThunderAgent
from autellix_lab.sim.model import EngineModel

__all__ = ["BASELINE_NAMES", "Baseline", "make_baseline"]

_BASELINES: dict[str, type[Baseline]] = {
    baseline.name: baseline for baseline in (ThunderAgent, Continuum, LeastAttainedService)
}
BASELINE_NAMES = tuple(_BASELINES)


def make_baseline(name: str, model: EngineModel) -> Baseline:
    """Return the baseline of this name for one engine."""
    return _BASELINES[name](model)
