"""One OpenTelemetry span per settled call, with the attributes of the GenAI conventions; never content.

The SDK comes with the extra `autellix[otel]` and is imported only where an endpoint is set. Its own thread
sends the spans and drops those that it cannot send.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autellix_backend.observe.call_facts import CallFacts
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

    def take(self, facts: CallFacts) -> None:
        """Create the span of a call."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        end_ns = int(facts.ended_at_s * _NS)
        carrier = {} if facts.traceparent is None else {"traceparent": facts.traceparent}
        span = self._tracer.start_span(
            f"{facts.operation} {facts.model}" if facts.model else facts.operation,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes_of(facts),
            start_time=end_ns - int(facts.duration_s * _NS),
        )
        if facts.outcome != "ok":
            span.set_status(Status(StatusCode.ERROR, facts.outcome))
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
    """Return a tracer that sends to an OTLP collector over HTTP.

    Args:
        endpoint: The collector's address, as in OTEL_EXPORTER_OTLP_ENDPOINT, or its traces' address.

    Raises:
        SettingsError: if the extra is not installed.
    """
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    url = endpoint.rstrip("/")
    url = url if url.endswith(TRACES_PATH) else url + TRACES_PATH
    return CallTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))


def attributes_of(facts: CallFacts) -> dict[str, Any]:
    """Return the known attributes of a call's span."""
    attributes = {
        "gen_ai.operation.name": facts.operation,
        "gen_ai.provider.name": "autellix",
        "gen_ai.request.model": facts.model,
        "gen_ai.request.stream": facts.is_streaming,
        "gen_ai.conversation.id": facts.session_id,
        "gen_ai.agent.name": facts.program_name,
        "gen_ai.usage.input_tokens": facts.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": facts.cached_tokens,
        "gen_ai.usage.output_tokens": facts.output_tokens,
        "gen_ai.response.time_to_first_chunk": facts.first_token_s,
        "error.type": None if facts.outcome == "ok" else facts.outcome,
        "autellix.program.id": facts.program_id,
        "autellix.call.id": facts.call_id,
        "autellix.thread.id": facts.thread_id,
        "autellix.parent.ids": facts.parents,
        "autellix.tenant": facts.tenant or None,
        "autellix.identity.source": facts.identity_source,
        "autellix.engine": facts.engine,
        "autellix.outcome": facts.outcome,
        "autellix.wait_s": facts.wait_s,
        "autellix.service_s": facts.service_s,
        "autellix.inherited_service_s": facts.inherited_service_s,
        "autellix.level": facts.level,
        "autellix.preemptions": facts.preemptions,
        "autellix.demotions": facts.demotions,
        "autellix.promotions": facts.promotions,
        "autellix.estimated": facts.is_estimated,
    }
    return {name: value for name, value in attributes.items() if value is not None}
