"""The record of a settled call, for limits, recordings, events, metrics, logs and traces, without content."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import CallStart


class Outcome(enum.StrEnum):
    """How a call ended."""

    OK = "ok"
    REJECTED = "rejected"
    """The engine answered with an error, by the client's fault."""
    UNAVAILABLE = "unavailable"
    """No engine answered, or it died."""
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad_answer"
    """The engine's answer could not be used."""
    ENGINE_ERROR = "engine_error"
    """The engine failed the call by its own fault: an error's status, object or event."""
    TRUNCATED = "truncated"
    """The engine's stream ended without its last event."""
    ABORTED = "aborted"
    """The client went away."""


class Usage(msgspec.Struct, frozen=True):
    """What an answer states about itself: its tokens, and why it ended."""

    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int | None = None
    """The prompt tokens found in the prefix cache; None if unknown."""
    finish_reasons: tuple[str, ...] = ()
    """Why its choices ended, in the answer's words, if it states that near its usage."""


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Where a call left the prefix of its program, by the engine's count of what it found."""

    kind: str
    """One of `identity.prefix_breaks.Kind`."""
    path: str
    """The place in its body, without content; empty for what is no difference of bodies."""
    expected_tokens: int
    """The prompt tokens that should have been found."""
    found_tokens: int
    prompt_tokens: int


class SettledCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose cost is accounted for; unknown values are None."""

    start: CallStart
    """Its ids as the backend knows them: program and session start with the tenant."""
    receipt: Receipt
    """Its cost, with the program's id as its client knows it."""
    outcome: Outcome
    status: int | None = None
    """The status of the error that it ended with, the engine's or ours."""
    reason: str | None = None
    """Why it failed, in at most 200 characters: the engine's words or ours."""
    began_s: float
    """The arrival of the call, on the gateway's clock."""
    settled_s: float
    """The settlement of the call, on the gateway's clock."""
    ended_at_s: float
    """Seconds since 1970."""
    session_id: str | None = None
    """The session's id as its client knows it."""
    tenant: str = ""
    """Empty without tenants."""
    identity_source: str = ""
    engine: str
    operation: str = "chat"
    """The operation by GenAI's names: `chat`, `text_completion` or `embeddings`."""
    model: str | None = None
    is_streaming: bool = False
    body_bytes: int = 0
    record_count: int = 1
    """The engine requests that it became: one for each prompt and choice."""
    first_token_s: float | None = None
    """The time from the arrival to the first bytes of a streamed answer."""
    sent_for_s: float = 0.0
    """The time from the last sending to the settlement."""
    runs: tuple[tuple[float, float], ...] = ()
    """When it got and lost its slot (s after its arrival), by its engine's clock; empty if unknown."""
    prefilled_s: float | None = None
    """The time from the arrival to the end of the prefill; None if unknown, or without one."""
    inherited_service_s: float = 0.0
    """The service that it inherited from its program, as the policy counts it."""
    stated_usage: Usage | None = None
    """The tokens that its answer states, if they were read."""
    streamed_events: int = 0
    """The events of its streamed answer that went out: about as many as tokens."""
    price_tokens: int = 0
    """What it costs: reported, else as its answer states, else estimated."""
    is_final: bool = False
    """Whether its client marked it as the last of its program."""
    prefix_break: PrefixBreak | None = None
    """Why it found less of its program's context than there was; None if it found enough, or if unknown."""
    asked_tools: tuple[str, ...] = ()
    """The names of the tools that its answer calls."""
    traceparent: str | None = None
    request_id: str | None = None
    """The client's `x-request-id`."""

    @property
    def duration_s(self) -> float:
        """The time from its arrival to its settlement."""
        return self.settled_s - self.began_s

    @property
    def engine_usage(self) -> Usage | None:
        """The tokens that engines reported, the prompt counted for each choice, else those of the answer."""
        receipt = self.receipt
        if receipt.prompt_tokens is None:
            return self.stated_usage
        return Usage(receipt.prompt_tokens, receipt.output_tokens or 0, receipt.cached_tokens)

    @property
    def answer_usage(self) -> Usage | None:
        """The tokens of its answer, the prompt counted once for any number of choices."""
        return self.engine_usage if self.record_count == 1 else self.stated_usage or self.engine_usage

    @property
    def engine_time_s(self) -> float:
        """The engine's time for it as reported, else the time since it was sent."""
        return self.sent_for_s if self.receipt.prompt_tokens is None else self.receipt.service_s

    @property
    def output_token_s(self) -> float | None:
        """Mean time between the output tokens of a whole stream, after the first; None for other calls."""
        usage = self.answer_usage
        if self.outcome is not Outcome.OK or self.first_token_s is None or usage is None:
            return None
        following = usage.output_tokens - self.record_count
        if following <= 0:
            return None
        # Parallel choices decode at the same time.
        return (self.duration_s - self.first_token_s) / (following / self.record_count)

    @property
    def trace_id(self) -> str | None:
        """The id of the trace that its client names."""
        parts = (self.traceparent or "").split("-")
        return parts[1] if len(parts) == 4 else None
