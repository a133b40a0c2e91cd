"""OpenTelemetry traces of others as programs; ours are read back in tests/lab/report/test_otel.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.otel import load_otel
from autellix_lab.workload.trace import ProgramTrace, TraceError


def span(number: int, begin_s: float, end_s: float, **attributes: Any) -> dict[str, Any]:
    """A span of a chat; underscores of the attributes are points, `above` is its parent."""
    above, name = attributes.pop("above", None), attributes.pop("name", "chat m")
    return {
        "trace_id": "t",
        "span_id": str(number),
        "parent_span_id": None if above is None else str(above),
        "name": name,
        "start_time": f"2026-06-01T05:40:{begin_s:09.6f}",
        "end_time": f"2026-06-01T05:40:{end_s:09.6f}Z",
        "attributes": {"gen_ai." + key.replace("__", "."): value for key, value in attributes.items()},
    }


def tokens(prompt: int, answer: int, cached: int | None = None) -> dict[str, Any]:
    found = {"usage__input_tokens": prompt, "usage__output_tokens": answer}
    return found if cached is None else {**found, "usage__cache_read.input_tokens": cached}


def messages(*texts: str) -> list[dict[str, Any]]:
    """A conversation that a user begins."""
    return [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
    ]


def said(prompt: list[dict[str, Any]], answer: str) -> dict[str, Any]:
    return {
        "input.messages": json.dumps(prompt),
        "output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}],
    }


def load(tmp_path: Path, *spans: dict[str, Any], options: LoadOptions | None = None) -> list[ProgramTrace]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"spans": spans}))
    return load_otel(path, options or LoadOptions())


def test_calls_wait_for_those_whose_answers_they_repeat(tmp_path: Path) -> None:
    """A fan-out and its join; an answer that an earlier parent has repeated is no parent."""
    (program,) = load(
        tmp_path,
        span(1, 0, 1, **tokens(10, 5), **said(messages("a"), "b")),
        span(2, 2, 3, **tokens(20, 5), **said(messages("a", "b", "c"), "d")),
        span(3, 2, 4, **tokens(20, 5), **said(messages("a", "b", "e"), "f")),
        span(4, 6.5, 7, **tokens(40, 5), **said(messages("a", "b", "c", "d", "e", "f", "g"), "h")),
    )

    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.gap_before_s for call in program.calls] == [0.0, 1.0, 1.0, 2.5]
    assert [call.kind for call in program.calls] == ["root", "chain", "chain", "chain"]
    assert [(call.start_s, call.latency_s) for call in program.calls][3] == (6.5, 0.5)
    assert (program.source, program.program_id, program.tokenizer) == ("otel", "t", "as recorded")


def test_a_prompt_shares_what_its_text_has_in_common(tmp_path: Path) -> None:
    """In tokens by the share of the text, at most the earlier call's context."""
    (program,) = load(
        tmp_path,
        span(1, 0, 1, **tokens(100, 10), **said(messages("a" * 95), "b" * 9)),
        span(2, 2, 3, **tokens(240, 10), **said(messages("a" * 95, "b" * 9, "c" * 94), "d")),
        span(3, 2, 3, **tokens(100, 10), **said(messages("z" * 95), "d")),
    )

    assert [call.shared_prefix_tokens for call in program.calls] == [0, 110, 4]
    assert [call.prefix_from for call in program.calls] == [None, 0, 0]


def test_without_messages_times_and_the_cache_tell(tmp_path: Path) -> None:
    """What a provider had cached of the first prompt is a system prefix."""
    (program,) = load(
        tmp_path,
        span(1, 0, 1, **tokens(100, 10, 30)),
        span(2, 2, 3, **tokens(120, 10, 96)),
        span(3, 2, 4, **tokens(130, 10, 500)),
        span(4, 5, 6, **tokens(140, 10, 0)),
    )

    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.shared_prefix_tokens for call in program.calls] == [0, 96, 110, 0]
    assert program.system_prefix_tokens == 30


def test_agents_are_threads(tmp_path: Path) -> None:
    """They start from the agent that called them, which waits for them. Names are unique."""
    agent = {"name": "invoke_agent x", "operation.name": "invoke_agent", "agent.name": "x"}
    (program,) = load(
        tmp_path,
        span(1, 0, 20, **{**agent, "agent.name": "boss"}),
        span(2, 1, 2, above=1, **tokens(10, 5)),
        span(3, 2, 6, above=1, name="execute_tool x"),
        span(4, 2, 5, above=3, **agent),
        span(5, 2, 6, above=3, **agent),
        span(6, 3, 4, above=4, **tokens(11, 5)),
        span(7, 3, 5, above=5, **tokens(12, 5)),
        span(8, 6, 7, above=1, **tokens(13, 5)),
        span(9, 8, 9, above=1, **tokens(14, 5)),
    )

    assert [call.thread for call in program.calls] == ["boss", "x", "x.2", "boss", "boss"]
    assert [call.parents for call in program.calls] == [(), (0,), (0,), (1, 2), (3,)]
    assert program.source == "boss"
    assert (program.calls[0].start_s, program.calls[0].gap_before_s) == (1.0, 1.0)


def test_agents_are_named_even_without_a_name(tmp_path: Path) -> None:
    """Spans that are each other's parents do not stop the loader."""
    (program,) = load(
        tmp_path,
        span(1, 0, 9, above=2, name="invoke_agent"),
        span(2, 0, 9, above=1, name="tool"),
        span(3, 1, 2, above=2, **tokens(10, 5)),
    )

    assert [call.thread for call in program.calls] == ["agent"]


def test_conversations_are_programs(tmp_path: Path) -> None:
    """Also over several traces; and a trace may hold several."""
    first, second = load(
        tmp_path,
        span(1, 0, 1, **tokens(10, 5), **{"conversation.id": "a"}),
        {**span(1, 2, 3, **tokens(20, 5), **{"conversation.id": "a"}), "trace_id": "u"},
        span(2, 5, 6, **tokens(10, 5), **{"conversation.id": "b", "request.model": "m"}),
    )

    assert (first.program_id, len(first.calls), first.models) == ("a", 2, ())
    assert (second.program_id, second.arrival_s, second.models) == ("b", 5.0, ("m",))


def test_other_spans_and_calls_without_work_are_left_out(tmp_path: Path) -> None:
    """A call that failed after it had generated tokens counts."""
    failed = {"status": {"code": 2}}
    (program,) = load(
        tmp_path,
        span(1, 0, 9, name="GET /"),
        span(2, 0, 1, **tokens(0, 5)),
        {**span(3, 0, 1, usage__input_tokens=10), **failed},
        {**span(4, 1, 2, **tokens(10, 5)), **failed},
        span(5, 2, 3, name="embeddings m", **tokens(10, 0)),
        span(6, 3, 4, usage__prompt_tokens=7, usage__completion_tokens=3),
    )

    assert [(call.prefill_tokens, call.decode_tokens) for call in program.calls] == [(10, 5), (7, 3)]


def test_tokens_of_messages_are_counted_where_there_is_no_usage(tmp_path: Path) -> None:
    """Of all their parts: instructions, texts, calls of tools and their results."""
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "bb"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "r"}]},
        "plain",
    ]
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    (program,) = load(
        tmp_path,
        span(
            1,
            0,
            1,
            **{
                "system_instructions": [{"type": "text", "content": "aa"}],
                "input.messages": prompt,
                "output.text": "cccc",
            },
        ),
        options=LoadOptions(count_tokens=count, tokenizer="letters"),
    )

    assert program.calls[0].decode_tokens == 4
    assert counted[1] == (
        "system\naa\nuser\nbb\n"
        'assistant\n[{"id": "1"}]\n'
        'tool\n{"type": "tool_call_response", "id": "1", "response": "r"}\n'
        "\nplain\n"
    )
    assert program.tokenizer == "letters"


def test_lines_of_a_collector(tmp_path: Path) -> None:
    """OTLP's JSON: attributes are pairs, times are nanoseconds in strings."""
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 3}},
        {"key": "autellix.call.id", "value": {"stringValue": "c"}},
        {"key": "autellix.thread.id", "value": {"stringValue": "worker"}},
        {"key": "autellix.parent.ids", "value": {"arrayValue": {}}},
        {
            "key": "gen_ai.input.messages",
            "value": {
                "arrayValue": {
                    "values": [
                        {
                            "kvlistValue": {
                                "values": [
                                    {"key": "role", "value": {"stringValue": "user"}},
                                    {"key": "content", "value": {}},
                                ]
                            }
                        }
                    ]
                }
            },
        },
    ]
    named = [
        *attributes[:3],
        {"key": "autellix.parent.ids", "value": {"arrayValue": {"values": [{"stringValue": "c"}]}}},
    ]
    spans = [
        {
            "traceId": "t",
            "spanId": str(number),
            "startTimeUnixNano": f"178000000{number}000000000",
            "endTimeUnixNano": f"178000000{number}500000000",
            "attributes": found,
        }
        for number, found in enumerate((attributes, attributes, named))
    ]
    path = tmp_path / "traces.jsonl"
    path.write_text(
        "\n".join(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]}) for each in spans)
    )

    (program,) = load_otel(path, LoadOptions())

    assert [call.parents for call in program.calls] == [(), (), (0, 1)]
    assert [call.thread for call in program.calls] == ["worker", "worker", "main"]
    assert [(call.start_s, call.latency_s) for call in program.calls] == [(0.0, 0.5), (1.0, 0.5), (2.0, 0.5)]
    assert [call.prefill_tokens for call in program.calls] == [12, 12, 12]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start_time": "noon"}, r"spans\[0\].start_time is 'noon'; expected a date"),
        ({"attributes": {"gen_ai.input.messages": "{"}}, "is not JSON; expected a list of messages"),
        ({"attributes": {"gen_ai.input.messages": 3}}, "is 3; expected a list of messages"),
        ({"attributes": {"gen_ai.usage.input_tokens": -1}}, "is -1; expected zero or more"),
    ],
)
def test_broken_spans_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """With the file and the field."""
    with pytest.raises(TraceError, match=rf"trace\.json: .*{message}"):
        load(tmp_path, {**span(1, 0, 1), **changes})


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """A trace without calls is no error here."""
    with pytest.raises(TraceError, match=r"holds no \*\.json"):
        load_otel(tmp_path, LoadOptions())
    assert load(tmp_path) == []


def test_what_a_gateway_sends_to_a_collector_is_read(tmp_path: Path) -> None:
    """Its programs, threads, parents and tokens, from the spans of a program and of its call."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
    from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from tests.observe.settled_calls import settled_call

    from autellix_backend.observe.tracing import ProgramTracer

    exporter = InMemorySpanExporter()
    tracer = ProgramTracer(SimpleSpanProcessor(exporter))
    tracer.begin_program("p", "p", "react", 1_699_999_990.0)
    call = settled_call(program_id="p", traceparent=None)
    tracer.take(call)
    tracer.end_program("p", 1_700_000_000.5, {})
    tracer.close()
    path = tmp_path / "spans.json"
    path.write_text(MessageToJson(encode_spans(exporter.get_finished_spans())))

    (program,) = load_otel(path, LoadOptions())

    assert call.engine_usage is not None
    assert (program.program_id, program.source) == (call.receipt.program_id, "react")
    assert [each.thread for each in program.calls] == [call.start.thread_id]
    assert [each.prefill_tokens for each in program.calls] == [call.engine_usage.prompt_tokens]
    assert [(each.start_s, each.latency_s) for each in program.calls] == [(8.0, 2.5)]
