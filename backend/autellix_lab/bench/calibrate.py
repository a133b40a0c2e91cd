"""Measure an engine's speed under full batches, so that offered load can be stated as a share of it.

The calibration plays some of the workload's own programs, all arriving at once, and measures while enough of
them run to fill the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autellix_backend.core.config import bounds_for
from autellix_backend.errors import CommandError
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import ProgramTrace

PROGRAMS_PER_SLOT = 2
WARM_UP_SHARE = 0.2
"""The first part of the window is not counted: caches, allocators and connections are cold."""
FIRST_LEVEL_CALLS = 2.0
"""Mean calls that the first level takes: in simulated demos a narrower one preempts more for nothing."""


class CalibrationError(CommandError):
    """The measurement yields no speed."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One engine's measured speed on one workload."""

    tokens_per_s: float
    """Generated tokens per second with the batch full: the capacity that rho refers to."""
    window_s: float
    calls: int
    step_s: float = math.inf
    """Mean time of an engine's step with the batch full; infinite if steps were not counted."""

    def rate_for(self, rho: float, programs: Sequence[ProgramTrace]) -> float:
        """Return the programs per second whose generated tokens are `rho` times the capacity."""
        tokens = sum(program.decode_tokens for program in programs) / len(programs)
        return rho * self.tokens_per_s / tokens


def sample(programs: Sequence[ProgramTrace], slots: int, tokens: int) -> list[ProgramTrace]:
    """Return the first programs that generate `tokens` tokens, and at least two for each batch slot."""
    chosen: list[ProgramTrace] = []
    generated = 0
    for program in programs:
        if generated >= tokens and len(chosen) >= PROGRAMS_PER_SLOT * slots:
            break
        chosen.append(program)
        generated += program.decode_tokens
    return chosen


def measure(results: Sequence[CallResult], slots: int) -> Calibration:
    """Take the speed from the results of programs that arrived at once.

    The window ends when fewer programs than batch slots, or half of them where they are few, are left.

    Raises:
        CalibrationError: if calls were lost or too few finished.
    """
    lost = [result.error for result in results if result.error]
    if lost:
        raise CalibrationError(f"{len(lost)} of {len(results)} calibration calls were lost: {lost[0]}")
    ends_s: dict[str, float] = {}
    for result in results:
        ends_s[result.program] = max(result.finish_s, ends_s.get(result.program, 0.0))
    if not ends_s:
        raise CalibrationError("no calibration call was made")
    left = min(slots, (len(ends_s) + 1) // 2)
    end_s = sorted(ends_s.values())[-left]
    begin_s = WARM_UP_SHARE * end_s
    inside = [result for result in results if begin_s < result.finish_s <= end_s]
    if len(inside) < 2:
        raise CalibrationError("too few calibration calls finished in the window; make it longer")
    tokens = sum(_tokens_inside(result, begin_s, end_s) for result in results)
    return Calibration(
        tokens_per_s=tokens / (end_s - begin_s),
        window_s=end_s - begin_s,
        calls=len(inside),
        step_s=_step_s(inside),
    )


def pooled(found: Sequence[Calibration]) -> Calibration:
    """Return the speed over all windows of several measurements."""
    window_s = sum(each.window_s for each in found)
    steps = sum(each.window_s / each.step_s for each in found)
    return Calibration(
        tokens_per_s=sum(each.tokens_per_s * each.window_s for each in found) / window_s,
        window_s=window_s,
        calls=sum(each.calls for each in found),
        step_s=window_s / steps if steps else math.inf,
    )


def choose_bounds(calibration: Calibration, programs: Sequence[ProgramTrace]) -> tuple[float, ...]:
    """Derive the queue bounds from the cost of a mean call at the measured speed.

    An operator would set them once per model and machine. They depend on no single program; the scheduler
    knows neither lengths nor structure.
    """
    calls = sum(len(program.calls) for program in programs)
    mean_tokens = sum(program.decode_tokens for program in programs) / calls
    # A call is charged the time of each step that it is part of.
    per_token_s = 1.0 / calibration.tokens_per_s if math.isinf(calibration.step_s) else calibration.step_s
    return bounds_for(mean_tokens * per_token_s, first_calls=FIRST_LEVEL_CALLS)


def _tokens_inside(result: CallResult, begin_s: float, end_s: float) -> float:
    """Return the call's tokens, in proportion where the window cuts it."""
    overlap_s = min(result.finish_s, end_s) - max(result.submit_s, begin_s)
    return result.output_tokens * max(0.0, overlap_s) / max(result.response_s, 1e-9)


def _step_s(results: Sequence[CallResult]) -> float:
    known = [(result.finish_s, step) for result in results if (step := result.finish_step) is not None]
    if not known:
        return math.inf
    (begin_s, begin), (end_s, end) = min(known), max(known)
    return (end_s - begin_s) / (end - begin) if end > begin else math.inf
