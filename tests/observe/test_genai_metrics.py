"""Metrics by the GenAI conventions: what a call counts, and what a collector receives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.observe.settled_calls import settled_call

from autellix_backend.observe.genai_metrics import BUCKETS, GenAiMetrics, make_genai_metrics
from autellix_backend.observe.settled_call import Outcome

pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra otel is not installed")

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.observe.otlp_receiver import OtlpReceiver, receiving

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "autellix", "gen_ai.request.model": "m"}


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


def points(reader: InMemoryMetricReader, *calls: Any) -> dict[str, list[tuple[dict[str, Any], int, float]]]:
    """Return attributes, count and sum of each histogram after some calls."""
    metrics = GenAiMetrics(reader)
    for call in calls:
        metrics.take(call)
    data: Any = reader.get_metrics_data()
    found = {
        metric.name: [(dict(point.attributes), point.count, point.sum) for point in metric.data.data_points]
        for of_resource in (data.resource_metrics if data else ())
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    }
    metrics.close()
    return found


def test_names_and_attributes_are_those_of_the_conventions(reader: InMemoryMetricReader) -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

    names = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    found = points(reader, settled_call())

    assert found.keys() == BUCKETS.keys() <= names
    used = {name for rows in found.values() for attributes, _, _ in rows for name in attributes}
    assert used <= known


def test_a_streamed_call_counts_in_each(reader: InMemoryMetricReader) -> None:
    assert points(reader, settled_call()) == {
        "gen_ai.client.token.usage": [
            (CHAT | {"gen_ai.token.type": "input"}, 1, 10),
            (CHAT | {"gen_ai.token.type": "output"}, 1, 20),
        ],
        "gen_ai.server.request.duration": [(CHAT, 1, 2.5)],
        "gen_ai.server.time_to_first_token": [(CHAT, 1, 0.5)],
        "gen_ai.server.time_per_output_token": [(CHAT, 1, pytest.approx(2.0 / 19))],
    }


def test_a_call_that_failed_counts_as_a_duration_with_its_error(reader: InMemoryMetricReader) -> None:
    call = settled_call(outcome=Outcome.TIMEOUT, prompt_tokens=None, model="never-answered")

    assert points(reader, call) == {
        "gen_ai.server.request.duration": [
            (CHAT | {"gen_ai.request.model": "other", "error.type": "timeout"}, 1, 2.5)
        ]
    }


@pytest.fixture
def receiver() -> Any:
    with receiving() as found:
        yield found


def test_a_collector_receives_histograms_of_the_conventions_at_the_end_at_last(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=research")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    metrics = make_genai_metrics(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert metrics is not None
    metrics.take(settled_call())
    metrics.close()

    _, headers, message = receiver.requests[-1]
    assert headers["x-team"] == "research"
    [of_resource] = message.resource_metrics
    assert ("service.name", "mine") in {
        (each.key, each.value.string_value) for each in of_resource.resource.attributes
    }
    found = receiver.metrics()
    assert {name: metric.unit for name, metric in found.items()} == {
        name: "{token}" if "token.usage" in name else "s" for name in BUCKETS
    }
    for name, metric in found.items():
        assert tuple(metric.histogram.data_points[0].explicit_bounds) == BUCKETS[name]
