"""Who is told of calls: the recorder, the feed of events, and sinks of the facts of settled calls."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.gateway.calls.registry import CallObserver, OpenCall, Outcome
from autellix_backend.observe.call_facts import CallFacts

FactsSink = Callable[[CallFacts], None]
"""Takes the facts of a settled call; must not raise or block."""


class CallObservers:
    """Tells several observers, in their order, and gives the facts of settled calls to sinks."""

    def __init__(self, *, wall_clock: Callable[[], float]) -> None:
        """Begin without anybody to tell.

        Args:
            wall_clock: Seconds since 1970.
        """
        self._wall_clock = wall_clock
        self._observers: list[CallObserver] = []
        self._sinks: list[FactsSink] = []

    def add(self, observer: CallObserver) -> None:
        """Tell an observer too."""
        self._observers.append(observer)

    def add_sink(self, sink: FactsSink) -> None:
        """Give the facts to a sink too."""
        self._sinks.append(sink)

    def began(self, call: OpenCall) -> None:
        """Tell that a call began."""
        for observer in self._observers:
            observer.began(call)

    def settled(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """Tell that a call was settled."""
        for observer in self._observers:
            observer.settled(call, outcome, now)
        facts = facts_of(call, outcome, now, ended_at_s=self._wall_clock())
        for sink in self._sinks:
            sink(facts)


def facts_of(call: OpenCall, outcome: Outcome, now: float, *, ended_at_s: float) -> CallFacts:
    """Return the facts of a call that is settled."""
    identity, receipt, usage = call.identity, call.receipt, call.usage
    assert receipt is not None
    has_account = receipt.prompt_tokens is not None
    return CallFacts(
        ended_at_s=ended_at_s,
        call_id=identity.call,
        program_id=call.shown_program,
        program_name=identity.name,
        session_id=None if identity.session is None else call.tenant.shown(identity.session),
        thread_id=identity.thread,
        parents=identity.parents,
        tenant=call.tenant.name,
        identity_source=identity.source,
        engine=call.engine,
        operation=call.request.operation,
        model=call.request.model,
        is_streaming=call.request.is_streaming,
        outcome=outcome.value,
        duration_s=now - call.start_s,
        first_token_s=None if call.first_bytes_s is None else call.first_bytes_s - call.start_s,
        wait_s=receipt.wait_s,
        service_s=receipt.service_s,
        inherited_service_s=call.entry_service_s,
        level=receipt.level,
        preemptions=receipt.preemptions,
        demotions=receipt.demotions,
        promotions=receipt.promotions,
        prompt_tokens=receipt.prompt_tokens if has_account or usage is None else usage.prompt_tokens,
        cached_tokens=receipt.cached_tokens if has_account or usage is None else usage.cached_tokens,
        output_tokens=receipt.output_tokens if has_account or usage is None else usage.completion_tokens,
        is_estimated=receipt.estimated,
        is_final=identity.is_final,
        tools=identity.interceptions,
        traceparent=call.request.traceparent,
    )
