"""Token counts read from answers."""

from __future__ import annotations

import msgspec
import pytest

from autellix_backend.gateway.calls.usage import (
    MAX_EVENT_BYTES,
    MAX_REASON,
    TAIL_EVENTS,
    StreamTail,
    read_usage,
)
from autellix_backend.observe.settled_call import Usage

USAGE = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'


def test_usage_is_read_with_its_cached_tokens() -> None:
    usage = read_usage(b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"x":[]}}')
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (7, 0, 4)
    plain = read_usage(USAGE)
    assert plain is not None and plain.cached_tokens is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"usage":null}', b"{}", b'{"usage":{"prompt_tokens":"x"}}', b"[" * 100_000]
)
def test_an_answer_without_usage_has_none(content: bytes) -> None:
    assert read_usage(content) is None


@pytest.mark.parametrize("count", ["7", "7.0", '"7"'])
def test_a_count_may_be_a_float_or_a_text(count: str) -> None:
    content = f'{{"usage":{{"prompt_tokens":{count},"completion_tokens":null}}}}'
    assert read_usage(content.encode()) == read_usage(b"\x00", metadata=content) == Usage(7)


def test_the_last_usage_of_a_stream_counts() -> None:
    tail = StreamTail()
    early = b'{"usage":{"prompt_tokens":7,"completion_tokens":1}}'
    long = b"x" * (MAX_EVENT_BYTES + 1)
    for data in (early, long, early, USAGE, b"{}", *[long] * TAIL_EVENTS):
        tail.feed(data)
    found = tail.usage()
    assert found is not None and found.output_tokens == 3


def test_a_stream_without_usage_has_none() -> None:
    tail = StreamTail()
    tail.feed(b'{"choices":[]}')
    assert tail.usage() is None


@pytest.mark.parametrize(
    "content",
    [
        b'{"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}',
        b'{"response":{"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}}',
        b'{"usage":{"input_tokens":3,"output_tokens":3,"cache_read_input_tokens":4}}',
    ],
)
def test_every_dialects_counts_mean_the_same(content: bytes) -> None:
    assert read_usage(content) == Usage(prompt_tokens=7, output_tokens=3, cached_tokens=4)


def test_the_usage_may_be_in_the_last_event() -> None:
    last = b'{"response":' + USAGE + b"}"
    assert StreamTail().usage(last) == Usage(prompt_tokens=7, output_tokens=3)


@pytest.mark.parametrize(
    ("content", "reasons"),
    [
        (
            b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}],' + USAGE[14:],
            ("stop", "length"),
        ),
        (b'{"stop_reason":"end_turn","usage":{"input_tokens":7,"output_tokens":3}}', ("end_turn",)),
        (b'{"choices":[{"finish_reason":' + b'"' + b"x" * 999 + b'"}],' + USAGE[14:], ("x" * MAX_REASON,)),
        (b'{"choices":[{"finish_reason":null}],' + USAGE[14:], ()),
        (b'{"choices":"none",' + USAGE[14:], ()),
    ],
)
def test_an_answer_says_why_it_ended(content: bytes, reasons: tuple[str, ...]) -> None:
    usage = read_usage(content)
    assert usage is not None and usage.finish_reasons == reasons


def test_a_stream_says_why_it_ended_before_its_usage() -> None:
    tail = StreamTail()
    for delta in (b'{"finish_reason":"length"}', b'{"delta":{}}', b'{"finish_reason":"stop"}'):
        tail.feed(b'{"choices":[' + delta + b"]}")
    tail.feed(USAGE)
    usage = tail.usage(b"[DONE]")
    assert usage is not None and usage.finish_reasons == ("length", "stop")


def message_start(**counts: int) -> bytes:
    return msgspec.json.encode({"message": {"usage": counts}})


def test_a_message_states_its_prompt_in_its_first_event() -> None:
    tail = StreamTail()
    tail.feed(message_start(input_tokens=20_000, cache_read_input_tokens=5, output_tokens=1))
    for _ in range(50):
        tail.feed(b'{"delta": {"text": "' + b"a" * 1000 + b'"}}')
    # It broke off here: its last usage has not come.
    assert tail.usage(streamed_events=51) == Usage(20_005, 51, 5)
    tail.feed(b'{"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}}')
    assert tail.usage() == Usage(20_005, 20, 5, ("end_turn",))
