"""Places the bounds of the queue levels by an engine model and a workload's mean call."""

from __future__ import annotations

from collections.abc import Sequence

from autellix_backend.core.config import bounds_for
from autellix_lab.sim.model import EngineModel
from autellix_lab.workload.trace import ProgramTrace


def choose_bounds(model: EngineModel, programs: Sequence[ProgramTrace]) -> tuple[float, ...]:
    """Return upper bounds of service (s) by the demo's rule, with modelled costs for measured ones."""
    calls = [call for program in programs for call in program.calls]
    times_s = (
        model.call_time_s(call.new_tokens, max(1, call.decode_tokens), call.prefill_tokens) for call in calls
    )
    return bounds_for(sum(times_s) / len(calls))
