"""Facts of calls, made for tests."""

from __future__ import annotations

from tests.observe.facts import facts

from autellix_backend.gateway.lifecycle import CallBegan, CallSettled, Outcome, Usage


def settled(call: CallBegan, outcome: Outcome, usage: Usage | None, *, at_s: float) -> CallSettled:
    """Return the fact that a call is settled."""
    return CallSettled(
        call=call,
        at_s=at_s,
        facts=facts(outcome=outcome.value),
        body_bytes=100,
        record_count=1,
        usage=usage,
        engine_time_s=0.0,
    )
