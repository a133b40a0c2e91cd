"""Splitting a stream into its events, wherever the chunks break; its last event, and errors within it."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.open_calls import open_call

from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.calls.reply import RelayedStream
from autellix_backend.gateway.calls.sse import engine_error_event, error_event, read_event
from autellix_backend.gateway.errors import ErrorShape, NotFoundError, error_shape
from autellix_backend.observe.settled_call import Outcome

STREAM = b'data: {"text": "data: [DONE]"}\n\ndata: d\r\n\r\n: x\n\ndata: e\r\rdata: [DONE]\n\n'
RESPONSE = b'{"type": "response.cancelled", "response": {"id": "resp_1"}}'


def relayed(path: str = "/v1/chat/completions", fields: dict[str, int] | None = None) -> RelayedStream:
    dialect = next(dialect for dialect in DIALECTS if dialect.path == path)
    return RelayedStream(open_call({}, key="c~1", body=json.dumps(fields or {}).encode(), dialect=dialect))


def split(chunks: list[bytes], path: str = "/v1/chat/completions") -> tuple[bytes, bytes]:
    stream = relayed(path)
    head = b"".join([stream.feed(chunk) for chunk in chunks])
    return head + stream.flush(), stream.last_event


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_split_does_not_depend_on_the_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[low:high] for low, high in itertools.pairwise(edges)]
    assert split(chunks) == (STREAM[:-14], b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [b"", b"data: x\n\n", b": c\n\n", b"x data: [DONE]\n\n"])
def test_a_stream_without_done_is_relayed_whole(stream: bytes) -> None:
    assert split([stream[:9], stream[9:]]) == (stream, b"")


def test_an_event_that_is_not_ended_is_ended() -> None:
    assert split([b"data: x\n\nda", b"ta: {}\n"]) == (b"data: x\n\ndata: {}\n\n\n", b"")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"])
def test_a_last_event_needs_no_end(end: bytes) -> None:
    assert split([b"data: x\n\nda", b"ta: [DONE]" + end]) == (b"data: x\n\n", b"data: [DONE]" + end)


def test_a_whole_event_is_relayed_at_once() -> None:
    stream = relayed()
    assert stream.feed(b"data: {}\n\ndata: ") == b"data: {}\n\n"
    assert (stream.held_bytes, stream.feed(b"{}\n\n")) == (6, b"data: {}\n\n")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/v1/chat/completions", [b"data: [DONE]"]),
        ("/v1/chat/completions", [b"data:[DONE]"]),
        ("/v1/chat/completions", [b"data: [DONE] "]),
        ("/v1/chat/completions", [b"event: done", b"data: [DONE]"]),
        ("/v1/responses", [b"event: response.cancelled", b"data: " + RESPONSE]),
        ("/v1/responses", [b"event:response.incomplete", b"data:{}"]),
        ("/v1/responses", [b"data: " + RESPONSE]),
        ("/v1/responses", [b"data: " + RESPONSE, b"id: 7", b"event: response.failed"]),
        ("/v1/responses", [b"data: [DONE]"]),
        ("/v1/messages", [b"event:message_stop", b"data:{}"]),
        ("/v1/messages", [b'data: {"type": "message_stop"}']),
        ("/v1/messages", [b"data: {", b'data: "type": "message_stop"}']),
    ],
)
def test_every_legal_form_of_a_last_event_is_found(path: str, lines: list[bytes], line_end: bytes) -> None:
    head, last = b"data: {}" + 2 * line_end, line_end.join([*lines, b"", b""])
    for cut in range(len(head + last)):
        stream = head + last
        assert split([stream[:cut], stream[cut:]], path) == (head, last)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"text": "[DONE]"}\n\n'),
        ("/v1/responses", b'event: response.complex\ndata: {"type": "response.completed"}\n\n'),
        ("/v1/responses", b'data: {"item": {"type": "response.completed"}}\n\n'),
        ("/v1/messages", b"data: [DONE]\n\n"),
        ("/v1/messages", b": event: message_stop\n\n"),
    ],
)
def test_what_only_looks_like_a_last_event_is_none(path: str, event: bytes) -> None:
    assert split([event], path) == (event, b"")


@pytest.mark.parametrize(
    ("fields", "finished", "outcome"),
    [
        ({}, [0], Outcome.OK),
        ({}, [], Outcome.TRUNCATED),
        ({"n": 2}, [1, 0], Outcome.OK),
        ({"n": 2}, [1, 1], Outcome.TRUNCATED),
    ],
)
def test_a_stream_whose_choices_have_all_ended_is_whole(
    fields: dict[str, int], finished: list[int], outcome: Outcome
) -> None:
    stream = relayed(fields=fields)
    stream.feed(b'data: {"choices": [{"index": 0, "finish_reason": null}]}\n\n')
    for index in finished:
        stream.feed(b'data: {"choices": [{"index": %d, "finish_reason": "stop"}]}\n\n' % index)
    assert stream.outcome() is outcome


@pytest.mark.parametrize(
    ("event", "is_error"),
    [
        (b'data: {"error": {"message": "m"}}', True),
        (b'data:{ "error" : "m"}', True),
        (b"event: error\ndata: {}", True),
        (b"event:response.failed\ndata: {}", True),
        (b'data: {"type": "error", "message": "m"}', True),
        (b'data: {"error": null}', False),
        (b'data: {"response": {"error": {"message": "m"}}}', False),
        (b'data: {"text": "\\"error\\""}', False),
        (b': {"error": {}}', False),
    ],
)
def test_an_error_is_seen(event: bytes, is_error: bool) -> None:
    assert read_event(event, is_typed=True).is_error is is_error


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_an_error_has_the_form_of_its_dialect(path: str) -> None:
    stream = relayed(path)
    opened = b'{"id": "resp_1", "object": "response", "model": "m", "status": "in_progress"}'
    stream.feed(b'event: response.created\ndata: {"response": ' + opened + b"}\n\n")
    event = error_event(NotFoundError("gone"), error_shape(path), response=stream.response)
    kind, data, is_error = read_event(event.strip(), is_typed=False)
    error = json.loads(data)
    assert (is_error, error["error"]["message"]) == (True, "gone")
    if path == "/v1/responses":
        assert (kind.decode(), error["type"]) == ("response.failed", "response.failed")
        response = error["response"]
        assert response["error"] == {"code": "not_found", "message": "gone"}
        assert (response["id"], response["model"], response["status"]) == ("resp_1", "m", "failed")
    else:
        assert kind == (b"error" if path == "/v1/messages" else b"")


@pytest.mark.parametrize("error", [{"code": 400, "message": "long"}, "long"], ids=["object", "text"])
def test_an_engines_error_keeps_its_words(error: object) -> None:
    content = json.dumps({"error": error}).encode()
    event = engine_error_event(content, NotFoundError("gone"), ErrorShape.RESPONSE)
    failed = json.loads(read_event(event.strip(), is_typed=True).data)
    code = "server_error" if error == "long" else "400"
    assert failed["response"]["error"] == {"code": code, "message": "long"}
    assert failed["error"]["message"] == "long"
