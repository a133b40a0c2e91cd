"""The facts of the lives of calls and programs, published to one list of subscribers.

A call begins once and is settled once. A program ends once, when the store has published that it has left the
process table: by its client, with a final call, with its last session, or for being idle.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.observe.call_facts import CallFacts


class Outcome(enum.StrEnum):
    """How a call ended."""

    OK = "ok"
    REJECTED = "rejected"
    """The engine answered with an error."""
    UNAVAILABLE = "unavailable"
    """No engine answered, or it died."""
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    """The client went away."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one answer."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """The prompt tokens found in the prefix cache; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegan:
    """A call that entered the process table."""

    key: str
    """Unique over all calls."""
    at_s: float
    call_id: str
    """The client's, which may repeat."""
    program_id: str
    """As the backend knows it, with the tenant before it."""
    program_name: str | None
    thread_id: str
    parents: tuple[str, ...] | None
    level: int
    """The level that it enters the engine's queues at."""
    entry_service_s: float
    """The service that the policy lets it start with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettled:
    """A call that is accounted for."""

    call: CallBegan
    at_s: float
    facts: CallFacts
    body_bytes: int
    record_count: int
    """The engine requests that it became: one for each prompt and choice."""
    usage: Usage | None
    """The tokens of its answer, the prompt counted once for any number of choices; None if unknown."""
    engine_time_s: float
    """The engine's time for it as reported, else the time since it was sent."""


class LifecycleSubscriber:
    """Receives the facts it overrides a method for; a method must not raise, block or change a fact."""

    def on_call_began(self, call: CallBegan) -> None:
        """Receive the beginning of a call."""

    def on_call_settled(self, settled: CallSettled) -> None:
        """Receive the settlement of a call, once for each that began."""

    def on_program_ended(self, program_id: str) -> None:
        """Receive the end of a program."""


class Lifecycle(LifecycleSubscriber):
    """Publishes each fact to the subscribers in their order."""

    def __init__(self, *subscribers: LifecycleSubscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: LifecycleSubscriber) -> None:
        """Publish to one more subscriber."""
        self._subscribers.append(subscriber)

    def on_call_began(self, call: CallBegan) -> None:
        """Publish the beginning of a call."""
        for subscriber in self._subscribers:
            subscriber.on_call_began(call)

    def on_call_settled(self, settled: CallSettled) -> None:
        """Publish the settlement of a call."""
        for subscriber in self._subscribers:
            subscriber.on_call_settled(settled)

    def on_program_ended(self, program_id: str) -> None:
        """Publish the end of a program."""
        for subscriber in self._subscribers:
            subscriber.on_program_ended(program_id)


class FactsSink(LifecycleSubscriber):
    """Passes the facts of settled calls to a metric, a log or a tracer."""

    def __init__(self, take: Callable[[CallFacts], None]) -> None:
        self._take = take

    def on_call_settled(self, settled: CallSettled) -> None:
        """Pass on the facts of the call."""
        self._take(settled.facts)
