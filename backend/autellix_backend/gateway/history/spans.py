"""The spans of a call for a timeline: waiting, prefill, decode and preemption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.gateway.history.ended_program import EndedCall


class SpanKind(StrEnum):
    """What a call did."""

    INACTIVE = "inactive"
    """It waited for KV memory while its program was inactive."""
    WAITING = "waiting"
    """It waited for its first slot otherwise."""
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    """It waited to get a slot back."""
    ENGINE = "engine"
    """It was in its engine, which does not report more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a call; times count from its program's first arrival."""

    kind: SpanKind
    start_s: float
    finish_s: float


def spans(call: EndedCall) -> tuple[Span, ...]:
    """Return the spans of a call, as far as its engine reported them.

    Of the waiting for KV memory before its first slot only the sum is known; it is shown first.
    """
    length_s = call.finish_s - call.start_s
    parts = _of_runs(call, length_s) if call.runs else _without_runs(call, length_s)
    moved = (
        Span(kind=kind, start_s=call.start_s + start_s, finish_s=min(call.finish_s, call.start_s + end_s))
        for kind, start_s, end_s in parts
    )
    # Drops empty spans and those after the end: the clocks of engine and gateway differ slightly.
    return tuple(span for span in moved if span.finish_s > span.start_s)


_Part = tuple[SpanKind, float, float]


def _without_runs(call: EndedCall, length_s: float) -> Iterator[_Part]:
    yield from _first_wait(call.inactive_s, call.wait_s)
    if call.first_token_s is None:
        yield SpanKind.ENGINE, call.wait_s, length_s
    else:
        yield SpanKind.PREFILL, call.wait_s, call.first_token_s
        yield SpanKind.DECODE, max(call.wait_s, call.first_token_s), length_s


def _of_runs(call: EndedCall, length_s: float) -> Iterator[_Part]:
    (first_s, _), prefilled_s = call.runs[0], call.prefilled_s or 0.0
    yield from _first_wait(call.inactive_s, first_s)
    clock_s = first_s
    for start_s, end_s in call.runs:
        yield SpanKind.PREEMPTED, clock_s, start_s
        yield SpanKind.PREFILL, start_s, min(end_s, prefilled_s)
        yield SpanKind.DECODE, max(start_s, prefilled_s), end_s
        clock_s = end_s
    if call.preemptions >= len(call.runs):
        # It ended while it waited to get its slot back.
        yield SpanKind.PREEMPTED, clock_s, length_s


def _first_wait(inactive_s: float, end_s: float) -> Iterator[_Part]:
    of_memory_s = min(inactive_s, end_s)
    yield SpanKind.INACTIVE, 0.0, of_memory_s
    yield SpanKind.WAITING, of_memory_s, end_s
