"""The spans of a call for a timeline: waiting, prefill, decode and preemption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from autellix_backend.observe.settled_call import SettledCall


class SpanKind(StrEnum):
    """What a call did."""

    INACTIVE = "inactive"
    """A wait for KV memory while the program was inactive."""
    WAITING = "waiting"
    """Any other wait for the first slot."""
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    """A wait to get a slot back."""
    ENGINE = "engine"
    """A stay in an engine that does not report more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a call; times count from its program's first arrival."""

    kind: SpanKind
    start_s: float
    finish_s: float


def spans(call: SettledCall, origin_s: float) -> tuple[Span, ...]:
    """Return the spans of a call, as far as its engine reported them; its program began at `origin_s`.

    Of the waiting for KV memory before its first slot only the sum is known; it is shown first.
    """
    began_s, length_s = call.began_s - origin_s, call.duration_s
    parts = _of_runs(call) if call.runs else _without_runs(call)
    moved = (
        Span(kind=kind, start_s=began_s + start_s, finish_s=began_s + min(length_s, end_s))
        for kind, start_s, end_s in parts
    )
    # Drops empty spans and those after the end: the clocks of engine and gateway differ slightly.
    return tuple(span for span in moved if span.finish_s > span.start_s)


_Part = tuple[SpanKind, float, float]


def _without_runs(call: SettledCall) -> Iterator[_Part]:
    wait_s, first_token_s = call.receipt.wait_s, call.first_token_s
    yield from _first_wait(call.receipt.inactive_s, wait_s)
    if first_token_s is None:
        yield SpanKind.ENGINE, wait_s, call.duration_s
    else:
        yield SpanKind.PREFILL, wait_s, first_token_s
        yield SpanKind.DECODE, max(wait_s, first_token_s), call.duration_s


def _of_runs(call: SettledCall) -> Iterator[_Part]:
    (first_s, _), prefilled_s = call.runs[0], call.prefilled_s or 0.0
    yield from _first_wait(call.receipt.inactive_s, first_s)
    clock_s = first_s
    for start_s, end_s in call.runs:
        yield SpanKind.PREEMPTED, clock_s, start_s
        yield SpanKind.PREFILL, start_s, min(end_s, prefilled_s)
        yield SpanKind.DECODE, max(start_s, prefilled_s), end_s
        clock_s = end_s
    if (call.receipt.preemptions or 0) >= len(call.runs):
        # It ended while it waited to get its slot back.
        yield SpanKind.PREEMPTED, clock_s, call.duration_s


def _first_wait(inactive_s: float, end_s: float) -> Iterator[_Part]:
    of_memory_s = min(inactive_s, end_s)
    yield SpanKind.INACTIVE, 0.0, of_memory_s
    yield SpanKind.WAITING, of_memory_s, end_s
