"""The paper's metrics from a run's results: pure functions.

Program latency is the time from the program's arrival to its last answer. Program token latency is its
response time divided by the tokens it generated (section 6.1): the response time of its critical path (the
longest chain of dependent calls), without tool time, over all its tokens.
Both are also counted in engine steps, by the run's clock or else from receipts: on a busy machine a step
takes longer, and as many are made. Only with the clock are the arrivals in steps, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autellix_lab.bench.results import CallResult
from autellix_lab.workload.describe import longest_chain
from autellix_lab.workload.statistics import statistics_of
from autellix_lab.workload.trace import ProgramTrace

STATISTICS = ("mean", "p50", "p95", "p99")
Metrics = Mapping[str, Mapping[str, float]]
"""Metric name to statistic name to value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """What one program experienced in one run."""

    program: str
    source: str
    output_tokens: int
    latency_s: float
    token_latency_s: float
    latency_steps: float | None
    token_latency_steps: float | None
    wait_s: float | None
    """Sum over its calls; None, like the sums below, if no receipt comes from an engine report."""
    service_s: float | None
    preemptions: int | None
    demotions: int | None
    promotions: int | None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """None if not known for each of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run of one policy: statistics by metric name, totals, and lost calls."""

    metrics: Metrics
    """A metric that no receipt reported is absent."""
    totals: Mapping[str, float]
    programs: int
    lost_calls: int
    duration_s: float
    errors: tuple[str, ...]


METRICS: dict[str, Callable[[ProgramOutcome], float | None]] = {
    "token_latency_s": lambda outcome: outcome.token_latency_s,
    "latency_s": lambda outcome: outcome.latency_s,
    "token_latency_steps": lambda outcome: outcome.token_latency_steps,
    "latency_steps": lambda outcome: outcome.latency_steps,
    "wait_s": lambda outcome: outcome.wait_s,
    "preemptions": lambda outcome: None if outcome.preemptions is None else float(outcome.preemptions),
    "service_per_token_s": lambda outcome: (
        None if outcome.service_s is None else outcome.service_s / max(1, outcome.output_tokens)
    ),
}


def outcomes(
    programs: Sequence[ProgramTrace], arrivals_s: Sequence[float] | None, results: Iterable[CallResult]
) -> list[ProgramOutcome]:
    """Return one outcome per program that lost no call.

    Args:
        programs: The programs.
        arrivals_s: When each arrived; None: with its first call, as on the engine's clock.
        results: The results of all calls.
    """
    by_program: dict[str, dict[int, CallResult]] = {}
    for result in results:
        by_program.setdefault(result.program, {})[result.call] = result
    found: list[ProgramOutcome] = []
    known_s = [None] * len(programs) if arrivals_s is None else arrivals_s
    for program, arrival_s in zip(programs, known_s, strict=True):
        calls = by_program.get(program.program_id, {})
        if all(call.id in calls and calls[call.id].error is None for call in program.calls):
            found.append(_outcome(program, arrival_s, calls))
    return found


def summarise(
    programs: Sequence[ProgramTrace], arrivals_s: Sequence[float] | None, results: Sequence[CallResult]
) -> RunSummary:
    """Reduce a run to its statistics; the arguments are those of `outcomes`."""
    found = outcomes(programs, arrivals_s, results)
    answered = [result for result in results if result.error is None]
    errors = [result.error for result in results if result.error is not None]
    return RunSummary(
        metrics=metrics_of(found),
        totals=_totals(found, answered),
        programs=len(found),
        lost_calls=len(errors),
        duration_s=max((result.finish_s for result in answered), default=0.0),
        errors=tuple(dict.fromkeys(errors))[:5],
    )


def metrics_of(found: Sequence[ProgramOutcome]) -> dict[str, dict[str, float]]:
    """Return the statistics of each metric that any of the programs has."""
    metrics: dict[str, dict[str, float]] = {}
    for name, read in METRICS.items():
        values = [value for outcome in found if (value := read(outcome)) is not None]
        if values:
            metrics[name] = statistics_of(values)
    return metrics


def quotients(metrics: Metrics, baseline: Metrics) -> dict[str, dict[str, float]]:
    """Divide each statistic by the baseline's; one whose baseline is zero is left out."""
    return {
        name: {key: value / baseline[name][key] for key, value in values.items() if baseline[name][key] > 0}
        for name, values in metrics.items()
        if name in baseline
    }


def critical_path(program: ProgramTrace, weight: Callable[[int], float]) -> float:
    """Return the largest sum of weights along a path of dependent calls."""
    return longest_chain(program, [weight(call.id) for call in program.calls])


def _outcome(
    program: ProgramTrace, arrival_s: float | None, calls: Mapping[int, CallResult]
) -> ProgramOutcome:
    if arrival_s is None:
        arrival_s = min(result.submit_s for result in calls.values())
    output_tokens = sum(result.output_tokens for result in calls.values())
    path_s = critical_path(program, lambda call: calls[call].response_s)
    spans = _step_spans(calls)
    path_steps = None
    if spans is not None:
        path_steps = critical_path(program, lambda call: spans[call][1] - spans[call][0])
    return ProgramOutcome(
        program=program.program_id,
        source=program.source,
        output_tokens=output_tokens,
        latency_s=max(result.finish_s for result in calls.values()) - arrival_s,
        token_latency_s=path_s / max(1, output_tokens),
        latency_steps=_extent(spans),
        token_latency_steps=None if path_steps is None else path_steps / max(1, output_tokens),
        wait_s=_sum(calls, "wait_s"),
        service_s=_sum(calls, "service_s"),
        preemptions=_count(calls, "preemptions"),
        demotions=_count(calls, "demotions"),
        promotions=_count(calls, "promotions"),
        prompt_tokens=sum(result.prompt_tokens for result in calls.values()),
        cached_tokens=_cached(calls),
    )


def _step_spans(calls: Mapping[int, CallResult]) -> dict[int, tuple[float, float]] | None:
    """Return each call's first and last engine step, or None if a receipt lacks them."""
    spans: dict[int, tuple[float, float]] = {}
    for call, result in calls.items():
        first, last = result.submit_step, result.finish_step
        if first is None or last is None:
            first, last = result.receipt_number("arrival_step"), result.receipt_number("finish_step")
        if first is None or last is None:
            return None
        spans[call] = (first, last)
    return spans


def _extent(spans: Mapping[int, tuple[float, float]] | None) -> float | None:
    if spans is None:
        return None
    return max(last for _, last in spans.values()) - min(first for first, _ in spans.values())


def _sum(calls: Mapping[int, CallResult], field: str) -> float | None:
    known = [
        value
        for result in calls.values()
        if result.has_engine_report and (value := result.receipt_number(field)) is not None
    ]
    return sum(known) if known else None


def _count(calls: Mapping[int, CallResult], field: str) -> int | None:
    total = _sum(calls, field)
    return None if total is None else int(total)


def _cached(calls: Mapping[int, CallResult]) -> int | None:
    counts = [result.cached_tokens for result in calls.values()]
    return None if None in counts else sum(count for count in counts if count is not None)


def _totals(found: Sequence[ProgramOutcome], answered: Sequence[CallResult]) -> dict[str, float]:
    return {
        "calls": len(answered),
        "output_tokens": sum(result.output_tokens for result in answered),
        "prompt_tokens": sum(result.prompt_tokens for result in answered),
        "cached_tokens": sum(result.cached_tokens or 0 for result in answered),
        "wait_s": sum(outcome.wait_s or 0.0 for outcome in found),
        "service_s": sum(outcome.service_s or 0.0 for outcome in found),
        "preemptions": sum(outcome.preemptions or 0 for outcome in found),
        "demotions": sum(outcome.demotions or 0 for outcome in found),
        "promotions": sum(outcome.promotions or 0 for outcome in found),
        "without_receipt": sum(result.receipt is None for result in answered),
    }
