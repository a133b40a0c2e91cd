"""The facts of a settled call for logs, traces and metrics: ids, counts and times, never content."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """One settled call; unknown values are None."""

    ended_at_s: float
    """Seconds since 1970."""
    call_id: str
    program_id: str
    """As its client knows it."""
    program_name: str | None
    session_id: str | None
    thread_id: str
    parents: tuple[str, ...] | None
    tenant: str
    """Empty without tenants."""
    identity_source: str
    engine: str
    operation: str
    """The operation by GenAI's names: `chat`, `text_completion` or `embeddings`."""
    model: str | None
    is_streaming: bool
    outcome: str
    duration_s: float
    """From its arrival to its settlement."""
    first_token_s: float | None
    """From its arrival to the first bytes of a streamed answer."""
    wait_s: float
    service_s: float
    inherited_service_s: float
    """The service that the policy started it with."""
    level: int | None
    preemptions: int | None
    demotions: int | None
    promotions: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    is_estimated: bool
    """Whether service and waiting are the gateway's estimates, for lack of an engine report."""
    is_final: bool
    """Whether its client marked it as the last of its program."""
    tools: tuple[tuple[str, float], ...]
    """The tools that ran at the client before it: name, seconds."""
    traceparent: str | None

    @property
    def trace_id(self) -> str | None:
        """Return the id of the trace that its client names."""
        parts = (self.traceparent or "").split("-")
        return parts[1] if len(parts) == 4 else None

    def to_mapping(self) -> dict[str, object]:
        """Return the facts as plain values, in the order of the fields."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["traceparent"]
        values["trace_id"] = self.trace_id
        return values
