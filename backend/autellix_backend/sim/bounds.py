"""Places the bounds of the queue levels by an engine model and a workload's mean call."""

from __future__ import annotations

from collections.abc import Sequence

from autellix_backend.sim.model import EngineModel
from autellix_backend.workload.schema import ProgramTrace

__all__ = ["choose_bounds"]


def choose_bounds(model: EngineModel, programs: Sequence[ProgramTrace], levels: int = 5) -> tuple[float, ...]:
    """Return upper bounds of service (s): the first is what a mean call costs, each next is doubled.

    The rule of `autellix demo`, with the model's costs in place of measured ones.
    """
    calls = [call for program in programs for call in program.calls]
    new_tokens = sum(call.new_tokens for call in calls)
    output_tokens = sum(max(1, call.decode_tokens) for call in calls)
    first_s = model.call_time_s(new_tokens, output_tokens) / len(calls)
    return tuple(round(first_s * 2**level, 4) for level in range(levels - 1))
