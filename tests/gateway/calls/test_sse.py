"""Splitting a stream at its end, wherever the chunks break."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.open_calls import arrived_call

from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.calls.reply import RelayedStream

STREAM = b'data: {"text": "data: [DONE]"}\n\ndata: d\r\n\r\n: x\n\ndata: [DONE]\n\n'


def split(chunks: list[bytes], path: str = "/v1/chat/completions") -> tuple[bytes, bytes]:
    call = arrived_call({})
    call.dialect = next(dialect for dialect in DIALECTS if dialect.path == path)
    stream = RelayedStream(call)
    head = b"".join([stream.feed(chunk) for chunk in chunks])
    return head + stream.flush(), bytes(stream.last_event)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_split_does_not_depend_on_the_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[low:high] for low, high in itertools.pairwise(edges)]
    assert split(chunks) == (STREAM[:-14], b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [b"", b"data: x\n\n", b"data: [DON", b"x data: [DONE]\n\n"])
def test_a_stream_without_done_is_relayed_whole(stream: bytes) -> None:
    assert split([stream[:9], stream[9:]]) == (stream, b"")


def test_a_last_event_needs_no_end_of_its_line() -> None:
    assert split([b"data: x\n\nda", b"ta: [DONE]"]) == (b"data: x\n\n", b"data: [DONE]")


def test_a_whole_line_is_relayed_at_once() -> None:
    stream = RelayedStream(arrived_call({}))
    assert stream.feed(b"data: {}\n\ndata: ") == b"data: {}\n\n"
    assert (stream.held_bytes, stream.feed(b"{}\n")) == (6, b"data: {}\n")


@given(st.lists(st.integers(0, 100), max_size=6))
def test_any_of_several_ends_is_found(cuts: list[int]) -> None:
    head, last = b"event: response.complex\ndata: {}\n\n", b"event: response.failed\ndata: {}\n\n"
    stream = head + last
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    chunks = [stream[low:high] for low, high in itertools.pairwise(edges)]
    assert split(chunks, "/v1/responses") == (head, last)
