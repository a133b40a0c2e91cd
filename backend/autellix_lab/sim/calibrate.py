"""Fits the times of an engine model to calls that a live engine has reported.

A call is charged the duration of every step that it was in. With d decoding calls, whose contexts have k
tokens in all, p prefill tokens and a admitted calls in a step, the model predicts the step's duration as

    step_s + d * decode_s + k * context_s + p * prefill_s + a * call_s

A call's receipt holds its last step and its number of steps, so the steps of all calls align. The sum over a
call's steps is its service time: one linear equation for the five times. The steps in which a preempted call
ran are not known, so it gives no equation.

They are solved by non-negative least squares. Errors are relative to the mean call of their mix, and every
mix has the same weight, so that neither many nor short calls outweigh the others.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autellix_backend.errors import CommandError
from autellix_lab.sim.model import EngineModel

TOKEN_BUDGET = 2048
"""vLLM's default on most hardware; the fit does not depend on it."""
NAMES = ("step_s", "decode_s", "context_s", "prefill_s", "call_s")
_SINGULAR = 3e-5
"""A singular value below this share of the largest counts as zero."""
_ROUNDING = 1e-12
"""Share of the values' squares by which errors may differ and count as equal."""

Row = tuple[float, ...]
"""One number for each of NAMES."""


class FitError(CommandError, ValueError):
    """The measured calls do not determine the model."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCall:
    """The engine's report of one call that ran without a preemption."""

    mix: str
    """The mix that it belongs to; steps of different mixes do not overlap."""
    finish_step: int
    engine_steps: int
    prefill_tokens: int
    """Prompt tokens that were computed, without cached tokens."""
    output_tokens: int
    service_s: float
    cached_tokens: int = 0
    """Prompt tokens that were in the cache."""

    @property
    def first_step(self) -> int:
        """The step in which its prefill began."""
        return self.finish_step - self.engine_steps + 1

    @property
    def prefill_steps(self) -> int:
        """Steps of its prefill; the last of them also produced the first token."""
        return self.engine_steps - self.output_tokens + 1

    @property
    def first_decode_step(self) -> int:
        """The step after its prefill, which reads the prompt and the first token."""
        return self.first_step + self.prefill_steps

    def context_tokens(self, step: int) -> int:
        """Return the tokens that a step reads to decode for it."""
        return self.cached_tokens + self.prefill_tokens + 1 + step - self.first_decode_step


@dataclass(frozen=True, slots=True)
class ModelFit:
    """Fitted times and their errors."""

    step_s: float
    decode_s: float
    context_s: float
    prefill_s: float
    call_s: float
    errors: Mapping[str, float]
    """By mix: fitted over measured service time of all its calls, minus one."""
    calls: int

    @property
    def worst_error(self) -> float:
        """The largest absolute error of any mix."""
        return max(map(abs, self.errors.values()))

    def engine_model(self, name: str, max_num_seqs: int, **fields: Any) -> EngineModel:
        """Return the fitted engine; `fields` are those that the fit does not determine."""
        today = datetime.datetime.now(datetime.UTC).date()
        source = f"measured on {today}: {self.calls} calls, at most {self.worst_error:.1%} off in any mix"
        return EngineModel(
            name=name,
            max_num_seqs=max_num_seqs,
            step_s=self.step_s,
            decode_s=self.decode_s,
            context_s=self.context_s,
            prefill_s=self.prefill_s,
            call_s=self.call_s,
            **{"token_budget": max(TOKEN_BUDGET, max_num_seqs), "source": source, **fields},
        )


def fit_model(calls: Sequence[MeasuredCall]) -> ModelFit:
    """Fit the times of a step to calls that ran without a preemption.

    Raises:
        FitError: if a call contradicts itself, or the calls leave a time undetermined.
    """
    for call in calls:
        if call.prefill_steps < 1 or not call.service_s > 0:
            raise FitError(
                f"a call of {call.mix} with {call.output_tokens} tokens had {call.engine_steps} steps and "
                f"{call.service_s} s of service; expected a step for each token, and time"
            )
    rows = _rows(calls)
    times = _solve(rows, [call.service_s for call in calls], _weights(calls))
    fitted: dict[str, float] = {}
    measured: dict[str, float] = {}
    for call, row in zip(calls, rows, strict=True):
        seconds = _product(row, times)
        fitted[call.mix] = fitted.get(call.mix, 0.0) + seconds
        measured[call.mix] = measured.get(call.mix, 0.0) + call.service_s
    errors = {mix: fitted[mix] / measured[mix] - 1 for mix in measured}
    return ModelFit(**dict(zip(NAMES, times, strict=True)), errors=errors, calls=len(calls))


def predicted_s(model: EngineModel, calls: Sequence[MeasuredCall]) -> list[float]:
    """Return the service time that a model predicts for each call among the others of its mix."""
    times = tuple(getattr(model, name) for name in NAMES)
    return [_product(row, times) for row in _rows(calls)]


def _rows(calls: Sequence[MeasuredCall]) -> list[Row]:
    """Return each call's coefficients: its steps, and the sums over them that the other times multiply."""
    decoding: defaultdict[tuple[str, int], float] = defaultdict(float)
    contexts: defaultdict[tuple[str, int], float] = defaultdict(float)
    prefilling: defaultdict[tuple[str, int], float] = defaultdict(float)
    starting: defaultdict[tuple[str, int], float] = defaultdict(float)
    for call in calls:
        starting[call.mix, call.first_step] += 1
        begin = call.first_decode_step
        for step in range(begin, call.finish_step + 1):
            decoding[call.mix, step] += 1
            contexts[call.mix, step] += call.context_tokens(step)
        # Chunks of one prompt count as equal; only calls that overlap with part of it would differ.
        for step in range(call.first_step, begin):
            prefilling[call.mix, step] += call.prefill_tokens / call.prefill_steps
    rows: list[Row] = []
    for call in calls:
        shared = [(call.mix, step) for step in range(call.first_step, call.finish_step + 1)]
        sums = (sum(each[key] for key in shared) for each in (decoding, contexts, prefilling, starting))
        rows.append((float(len(shared)), *sums))
    return rows


def _weights(calls: Sequence[MeasuredCall]) -> list[float]:
    """Return the factor on each call's error."""
    count = Counter(call.mix for call in calls)
    total: dict[str, float] = {}
    for call in calls:
        total[call.mix] = total.get(call.mix, 0.0) + call.service_s
    return [count[call.mix] ** 0.5 / total[call.mix] for call in calls]


def _solve(rows: Sequence[Row], values: Sequence[float], weights: Sequence[float]) -> Row:
    """Return the non-negative times with the least weighted squared error.

    With five unknowns, all choices of the times above zero can be tried. If contexts are too much alike to
    tell context_s from decode_s, it is zero and decode_s is the cost at these contexts.
    """
    # Each row ends with its value.
    equations = [
        (*(item * weight for item in row), value * weight)
        for row, value, weight in zip(rows, values, weights, strict=True)
    ]
    required = [name for name in NAMES if name != "context_s"]
    if _least_squares(equations, [NAMES.index(name) for name in required]) is None:
        raise FitError(
            f"{len(rows)} calls do not determine {', '.join(required)}; expected calls alone, in full "
            "batches, with long prompts, and with short answers"
        )
    best: tuple[float, Row] | None = None
    # Of choices that fit equally well the first one counts, which has decode_s rather than context_s.
    rounding = _ROUNDING * sum(row[-1] ** 2 for row in equations)
    for size in range(len(NAMES), 0, -1):
        for columns in itertools.combinations(range(len(NAMES)), size):
            found = _least_squares(equations, columns)
            if found is None or min(found) < 0 or not found[0] + found[1] > 0:
                continue
            error = sum((_product(row[:-1], found) - row[-1]) ** 2 for row in equations)
            if best is None or error < best[0] - rounding:
                best = error, found
    # Steps are counted and times are above zero, so step_s alone is always a solution.
    assert best is not None
    return best[1]


def _least_squares(equations: Sequence[Row], columns: Sequence[int]) -> Row | None:
    """Solve for some of the unknowns, the others zero; None if they are not determined."""
    # Imported here: it takes a tenth of a second, and only a fit needs it.
    import numpy as np

    table = np.asarray(equations, dtype=float).reshape(-1, len(NAMES) + 1)
    chosen, values = table[:, columns], table[:, -1]
    lengths = np.linalg.norm(chosen, axis=0)
    if not lengths.all():
        return None
    # Columns of length one, so that a small one means dependence and not small units.
    times, _, rank, _ = np.linalg.lstsq(chosen / lengths, values, rcond=_SINGULAR)
    if rank < len(columns):
        return None
    found = dict(zip(columns, times / lengths, strict=True))
    return tuple(float(found.get(column, 0.0)) for column in range(len(NAMES)))


def _product(row: Sequence[float], times: Sequence[float]) -> float:
    return sum(item * time for item, time in zip(row, times, strict=True))
