"""Spans of calls, kept in memory."""

from __future__ import annotations

import sys

import pytest
from tests.observe.settled_calls import TRACEPARENT, settled_call

from autellix_backend.observe.settled_call import Outcome
from autellix_backend.observe.tracing import CallTracer, attributes_of, check_installed, make_tracer
from autellix_backend.settings import SettingsError

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode


def span_of(**fields: object) -> ReadableSpan:
    exporter = InMemorySpanExporter()
    tracer = CallTracer(SimpleSpanProcessor(exporter))
    tracer.take(settled_call(**fields))
    (span,) = exporter.get_finished_spans()
    tracer.close()
    return span


def test_a_span_lasts_as_long_as_its_call_below_the_clients_span() -> None:
    span = span_of()

    assert (span.name, span.kind) == ("chat m", SpanKind.SERVER)
    assert span.start_time is not None and span.end_time is not None
    assert span.end_time - span.start_time == 2_500_000_000
    assert span.end_time == 1_700_000_000_500_000_000
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACEPARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert span.status.status_code is StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "autellix"


def test_attributes_follow_the_conventions_and_hold_no_content() -> None:
    attributes = attributes_of(settled_call())

    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["gen_ai.conversation.id"] == "s"
    assert attributes["gen_ai.usage.input_tokens"] == 10
    assert attributes["gen_ai.usage.output_tokens"] == 20
    assert attributes["gen_ai.response.time_to_first_chunk"] == 0.5
    assert attributes["autellix.program.id"] == "p"
    assert attributes["autellix.level"] == 2
    assert attributes["autellix.parent.ids"] == ("a", "b")
    assert "error.type" not in attributes
    assert "autellix.tenant" not in attributes


def test_names_of_attributes_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {name for name in attributes_of(settled_call()) if name.startswith("gen_ai.")}

    assert ours <= known


def test_a_call_that_failed_is_an_error_without_a_parent_if_none_is_named() -> None:
    span = span_of(outcome=Outcome.TIMEOUT, traceparent=None, model=None)

    assert (span.name, span.parent) == ("chat", None)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "timeout")
    assert span.attributes is not None and span.attributes["error.type"] == "timeout"


def test_a_malformed_traceparent_is_ignored() -> None:
    assert span_of(traceparent="garbage").parent is None


def test_the_exporter_is_made_of_the_endpoint() -> None:
    make_tracer("http://127.0.0.1:9").close()


def test_without_the_extra_the_setting_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(SettingsError, match=r"otlp_endpoint: needs opentelemetry.*autellix\[otel\]"):
        check_installed()
