"""OpenTelemetry spans: one per ended program, with its settled calls as children; never content.

Attributes follow the GenAI conventions. A call whose client names a span in `traceparent` stays below that
span, in the client's trace, and is linked to its program's span.

The SDK comes with the extra `autellix[otel]` and is imported only where an endpoint is set. Its own thread
sends the spans and drops those that it cannot send. Its environment variables (`OTEL_*`) count as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autellix_backend.observe.otlp import SHUTDOWN_TIMEOUT_MS, make_exporter, service_resource
from autellix_backend.observe.settled_call import Outcome, SettledCall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

_NS = 1_000_000_000


class ProgramTracer:
    """Creates a span for each program and for each settled call."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The gateway itself shuts the provider down.
        self._provider = TracerProvider(resource=service_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("autellix_backend")
        self._propagator = TraceContextTextMapPropagator()
        self._programs: dict[str, Span] = {}

    def begin_program(self, program_id: str, shown_id: str, name: str | None, began_at_s: float) -> None:
        """Open a program's span, if it has none.

        Args:
            program_id: As the backend knows it.
            shown_id: As its client knows it.
            name: Its name, if it has one.
            began_at_s: When its first call arrived, in seconds since 1970.
        """
        if program_id in self._programs:
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "autellix",
            "gen_ai.agent.name": name,
            "autellix.program.id": shown_id,
        }
        self._programs[program_id] = self._tracer.start_span(
            f"invoke_agent {name}" if name else "invoke_agent",
            context=Context(),
            kind=SpanKind.SERVER,
            attributes=_known(attributes),
            start_time=int(began_at_s * _NS),
        )

    def end_program(self, program_id: str, ended_at_s: float, parts_s: Mapping[str, float]) -> None:
        """Close a program's span.

        Args:
            program_id: As the backend knows it.
            ended_at_s: When its last call was answered, in seconds since 1970.
            parts_s: Its duration by what it was spent on, along its critical path.
        """
        span = self._programs.pop(program_id, None)
        if span is not None:
            span.set_attributes({f"autellix.program.{part}_s": value for part, value in parts_s.items()})
            span.end(int(ended_at_s * _NS))

    def take(self, call: SettledCall) -> None:
        """Create the span of a call."""
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

        end_ns = int(call.ended_at_s * _NS)
        carrier = {} if call.traceparent is None else {"traceparent": call.traceparent}
        context = self._propagator.extract(carrier)
        program, links = self._programs.get(call.start.program_id), list[Link]()
        if program is not None and context:
            links.append(Link(program.get_span_context()))
        elif program is not None:
            context = set_span_in_context(program, context)
        span = self._tracer.start_span(
            f"{call.operation} {call.model}" if call.model else call.operation,
            context=context,
            kind=SpanKind.SERVER,
            attributes=attributes_of(call),
            links=links,
            start_time=end_ns - int(call.duration_s * _NS),
        )
        if call.outcome is not Outcome.OK:
            span.set_status(Status(StatusCode.ERROR, call.outcome))
        span.end(end_ns)

    def close(self) -> None:
        """Send pending spans; blocks, for a bounded time."""
        self._provider.force_flush(SHUTDOWN_TIMEOUT_MS)
        self._provider.shutdown()


def make_tracer(endpoint: str | None, environment: Mapping[str, str]) -> ProgramTracer | None:
    """Return a tracer of spans that are sent to an OTLP collector; None without a collector.

    Arguments and errors are those of make_exporter().
    """
    exporter = make_exporter("traces", endpoint, environment)
    if exporter is None:
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return ProgramTracer(BatchSpanProcessor(exporter))


def attributes_of(call: SettledCall) -> dict[str, Any]:
    """Return the known attributes of a call's span."""
    start, receipt, usage, stated = call.start, call.receipt, call.engine_usage, call.stated_usage
    attributes = {
        "gen_ai.operation.name": call.operation,
        "gen_ai.provider.name": "autellix",
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.is_streaming,
        "gen_ai.conversation.id": call.session_id,
        "gen_ai.agent.name": start.name,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
        "gen_ai.response.finish_reasons": stated.finish_reasons or None if stated else None,
        "gen_ai.response.time_to_first_chunk": call.first_token_s,
        "error.type": None if call.outcome is Outcome.OK else call.outcome,
        "autellix.program.id": receipt.program_id,
        "autellix.call.id": start.call_id,
        "autellix.thread.id": start.thread_id,
        "autellix.parent.ids": start.parents,
        "autellix.tenant": call.tenant or None,
        "autellix.identity.source": call.identity_source,
        "autellix.engine": call.engine,
        "autellix.outcome": call.outcome,
        "autellix.wait_s": receipt.wait_s,
        "autellix.service_s": receipt.service_s,
        "autellix.inherited_service_s": call.inherited_service_s,
        "autellix.level": receipt.level,
        "autellix.preemptions": receipt.preemptions,
        "autellix.demotions": receipt.demotions,
        "autellix.promotions": receipt.promotions,
        "autellix.estimated": receipt.estimated,
    }
    return _known(attributes)


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
