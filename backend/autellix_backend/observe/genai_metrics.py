"""OpenTelemetry metrics of settled calls by the GenAI conventions, sent to an OTLP collector.

Names, units, attributes and buckets follow the conventions, for collectors that show every model server by
the same names; `/metrics` has more, in Prometheus's format. The SDK comes with the extra `autellix[otel]` and
is imported only where an endpoint is set; its own thread sends every `OTEL_METRIC_EXPORT_INTERVAL`
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autellix_backend.observe.bounded_labels import LearnedLabels
from autellix_backend.observe.metrics import MAX_MODELS
from autellix_backend.observe.otlp import SHUTDOWN_TIMEOUT_MS, make_exporter, service_resource
from autellix_backend.observe.settled_call import Outcome, SettledCall

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

TOKEN_USAGE = "gen_ai.client.token.usage"
REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"

BUCKETS: Mapping[str, tuple[float, ...]] = {
    TOKEN_USAGE: tuple(4.0**power for power in range(14)),
    REQUEST_DURATION: tuple(0.01 * 2**power for power in range(14)),
    TIME_TO_FIRST_TOKEN: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
        *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    TIME_PER_OUTPUT_TOKEN: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
}


class GenAiMetrics:
    """Histograms of settled calls, by operation and model."""

    def __init__(self, reader: MetricReader) -> None:
        """Create the histograms; `reader` collects them."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

        # The gateway itself shuts the provider down.
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=service_resource(),
            views=[
                View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
                for name, bounds in BUCKETS.items()
            ],
            shutdown_on_exit=False,
        )
        make = self._provider.get_meter("autellix_backend").create_histogram
        self._tokens = make(TOKEN_USAGE, "{token}", "Number of input and output tokens used.")
        self._duration_s = make(REQUEST_DURATION, "s", "Time from a call's arrival to its last byte.")
        self._first_token_s = make(TIME_TO_FIRST_TOKEN, "s", "Time to the first token of successful streams.")
        self._output_token_s = make(
            TIME_PER_OUTPUT_TOKEN, "s", "Time per output token after the first, of successful streams."
        )
        self._models = LearnedLabels(MAX_MODELS)

    def take(self, call: SettledCall) -> None:
        """Count a call."""
        is_ok = call.outcome is Outcome.OK
        common = {
            "gen_ai.operation.name": call.operation,
            "gen_ai.provider.name": "autellix",
            "gen_ai.request.model": self._models.of(call.model, is_known=is_ok),
        }
        error = {} if is_ok else {"error.type": str(call.outcome)}
        self._duration_s.record(call.duration_s, common | error)
        if (usage := call.answer_usage) is not None:
            self._tokens.record(usage.prompt_tokens, common | {"gen_ai.token.type": "input"})
            self._tokens.record(usage.output_tokens, common | {"gen_ai.token.type": "output"})
        if is_ok and call.first_token_s is not None:
            self._first_token_s.record(call.first_token_s, common)
        if (output_token_s := call.output_token_s) is not None:
            self._output_token_s.record(output_token_s, common)

    def close(self) -> None:
        """Send pending values; blocks, for a bounded time."""
        self._provider.shutdown(SHUTDOWN_TIMEOUT_MS)


def make_genai_metrics(endpoint: str | None, environment: Mapping[str, str]) -> GenAiMetrics | None:
    """Return metrics that are sent to an OTLP collector; None without a collector.

    Arguments and errors are those of make_exporter().
    """
    exporter = make_exporter("metrics", endpoint, environment)
    if exporter is None:
        return None
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return GenAiMetrics(PeriodicExportingMetricReader(exporter))
