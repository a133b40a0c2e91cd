"""Spans of calls, kept in memory."""

from __future__ import annotations

import pytest
from tests.observe.settled_calls import TRACEPARENT, settled_call

from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.observe.tracing import (
    ProgramTracer,
    attributes_of,
)

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode


def span_of(**fields: object) -> ReadableSpan:
    exporter = InMemorySpanExporter()
    tracer = ProgramTracer(SimpleSpanProcessor(exporter))
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


def spans_of_a_program(**fields: object) -> tuple[ReadableSpan, ReadableSpan]:
    """Return the spans of a call and of its program, which ended."""
    exporter = InMemorySpanExporter()
    tracer = ProgramTracer(SimpleSpanProcessor(exporter))
    for _ in range(2):
        tracer.begin_program("acme~p", "p", "react", 1_700_000_000.0)
    tracer.take(settled_call(program_id="acme~p", **fields))
    tracer.end_program("acme~p", 1_700_000_000.5, {"queue": 0.25, "engine": 0.5})
    tracer.end_program("acme~p", 1_700_000_001.0, {})
    call, program = exporter.get_finished_spans()
    tracer.close()
    return call, program


def test_a_program_is_a_span_above_its_calls() -> None:
    call, program = spans_of_a_program(traceparent=None)

    assert (program.name, program.parent) == ("invoke_agent react", None)
    assert program.context is not None and call.parent is not None
    assert call.parent.span_id == program.context.span_id
    assert (program.start_time, program.end_time) == (1_700_000_000_000_000_000, 1_700_000_000_500_000_000)
    assert program.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "autellix",
        "gen_ai.agent.name": "react",
        "autellix.program.id": "p",
        "autellix.program.queue_s": 0.25,
        "autellix.program.engine_s": 0.5,
    }


def test_a_call_below_its_clients_span_is_linked_to_its_program() -> None:
    call, program = spans_of_a_program(traceparent=TRACEPARENT)

    assert call.parent is not None and program.context is not None
    assert f"{call.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert [link.context.span_id for link in call.links] == [program.context.span_id]


def test_the_environments_name_and_attributes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")

    attributes = span_of().resource.attributes

    assert (attributes["service.name"], attributes["deployment.environment"]) == ("mine", "test")


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
    assert "gen_ai.response.finish_reasons" not in attributes
    assert "error.type" not in attributes
    assert "autellix.tenant" not in attributes


def test_names_of_attributes_are_those_of_the_conventions() -> None:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {name for name in attributes_of(settled_call()) if name.startswith("gen_ai.")}

    assert ours <= known


def test_why_a_call_ended_is_told_where_the_answer_states_it() -> None:
    stated = Usage(prompt_tokens=10, output_tokens=20, finish_reasons=("stop", "length"))

    attributes = attributes_of(settled_call(stated_usage=stated))

    assert attributes["gen_ai.response.finish_reasons"] == ("stop", "length")


def test_a_call_that_failed_is_an_error_without_a_parent_if_none_is_named() -> None:
    span = span_of(outcome=Outcome.TIMEOUT, traceparent="garbage", model=None)

    assert (span.name, span.parent) == ("chat", None)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "timeout")
    assert span.attributes is not None and span.attributes["error.type"] == "timeout"
