"""Splitting a stream at its end, wherever the chunks break."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix_backend.gateway.calls.sse import StreamEndSplitter

STREAM = b'data: {"text": "data: [DONE]"}\n\ndata: d\r\n\r\n: x\n\ndata: [DONE]\n\n'

DONE = (b"data: [DONE]",)


def split(chunks: list[bytes], ends: tuple[bytes, ...] = DONE) -> tuple[bytes, bytes]:
    splitter = StreamEndSplitter(ends)
    head, tail = b"", b""
    for chunk in chunks:
        before, found = (b"", chunk) if tail else splitter.feed(chunk)
        head, tail = head + before, tail + found
    return head + splitter.flush(), tail


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_split_does_not_depend_on_the_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[low:high] for low, high in itertools.pairwise(edges)]
    assert split(chunks) == (STREAM[:-14], b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [b"", b"data: x\n\n", b"data: [DON", b"x data: [DONE]\n\n"])
def test_a_stream_without_done_is_relayed_whole(stream: bytes) -> None:
    assert split([stream[:9], stream[9:]]) == (stream, b"")


def test_a_complete_event_is_relayed_at_once() -> None:
    assert StreamEndSplitter(DONE).feed(b"data: {}\n\n") == (b"data: {}\n\n", b"")


@given(st.lists(st.integers(0, 100), max_size=6))
def test_any_of_several_ends_is_found(cuts: list[int]) -> None:
    ends = (b"event: response.completed", b"event: response.failed")
    head, last = b"event: response.complex\ndata: {}\n\n", b"event: response.failed\ndata: {}\n\n"
    stream = head + last
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    chunks = [stream[low:high] for low, high in itertools.pairwise(edges)]
    assert split(chunks, ends) == (head, last)
