"""One OpenTelemetry span per settled call, with the attributes of the GenAI conventions; never content.

The SDK comes with the extra `autellix[otel]` and is imported only where an endpoint is set. Its own thread
sends the spans and drops those that it cannot send.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

SERVICE_NAME = "autellix"
TRACES_PATH = "/v1/traces"
SHUTDOWN_TIMEOUT_MS = 5000

_NS = 1_000_000_000


class CallTracer:
    """Creates a span for each settled call, below the one that its client names in `traceparent`."""

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The gateway itself shuts the provider down.
        resource = Resource.create({"service.name": SERVICE_NAME})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("autellix_backend")
        self._propagator = TraceContextTextMapPropagator()

    def take(self, call: SettledCall) -> None:
        """Create the span of a call."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        end_ns = int(call.ended_at_s * _NS)
        carrier = {} if call.traceparent is None else {"traceparent": call.traceparent}
        span = self._tracer.start_span(
            f"{call.operation} {call.model}" if call.model else call.operation,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes_of(call),
            start_time=end_ns - int(call.duration_s * _NS),
        )
        if call.outcome is not Outcome.OK:
            span.set_status(Status(StatusCode.ERROR, call.outcome))
        span.end(end_ns)

    def close(self) -> None:
        """Send what is pending, within a bound; blocks meanwhile."""
        self._provider.force_flush(SHUTDOWN_TIMEOUT_MS)
        self._provider.shutdown()


def check_installed() -> None:
    """Check that spans can be sent.

    Raises:
        SettingsError: if the extra is not installed.
    """
    try:
        importlib.import_module("opentelemetry.sdk.trace.export")
        importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError as error:
        raise SettingsError(
            "observe.otlp_endpoint", f"needs {error.name}", "`pip install 'autellix[otel]'`"
        ) from error


def make_tracer(endpoint: str) -> CallTracer:
    """Return a tracer that sends over HTTP to an OTLP collector, by its address or that of its traces.

    Raises:
        SettingsError: if the extra is not installed.
    """
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    url = endpoint.rstrip("/")
    url = url if url.endswith(TRACES_PATH) else url + TRACES_PATH
    return CallTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))


def attributes_of(call: SettledCall) -> dict[str, Any]:
    """Return the known attributes of a call's span."""
    start, receipt, usage = call.start, call.receipt, call.engine_usage
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
    return {name: value for name, value in attributes.items() if value is not None}
