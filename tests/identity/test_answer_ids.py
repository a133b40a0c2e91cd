"""Which ids are read from answers and from the requests that continue them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from autellix_backend.identity.answer_ids import (
    LAST_IDS,
    MAX_IDS,
    MAX_TOOLS,
    AnswerIds,
    is_unique,
    opens_tool_call,
    previous_response,
    read_answer_ids,
    transcript_ids,
)
from autellix_backend.raw_json import MAX_READ_BYTES


def unique(number: int) -> str:
    return f"call_a{number:08d}"


A, B, C = map(unique, range(3))


def fields(**body: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}


@pytest.mark.parametrize(
    "made",
    [
        "chatcmpl-tool-9f0c53a1d27be846",
        "call_9f0c53a1d27be846",
        "call_0_7c0f5a7e-1c9e-4f0b-9d6a-3f1b2c4d5e6f",
        "toolu_01A09q90qw90lq917835lq9",
        "D681PevKs",
        "resp_67ccd3a9da748190baa7f1570fe91ac604becb25c45c1d41",
    ],
)
def test_an_id_of_random_letters_and_digits_counts(made: str) -> None:
    assert is_unique(made)


@pytest.mark.parametrize(
    "repeated",
    [
        "",
        "0",
        "call_0",
        "call_abc123",
        "call_00000001",
        "call_1764244800123",
        "functions.read_file:0",
        "read_file_1",
        "getWeatherForecast",
        "call_searchdocuments",
        "call_9f0c53a1d27be846\n",
        "call_9f0c53a1 d27be846",
        "a1" * 200,
    ],
)
def test_numbers_names_and_short_ids_do_not(repeated: str) -> None:
    assert not is_unique(repeated)


CHAT_MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": C}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": A, "type": "function"}]},
    {"role": "tool", "tool_call_id": A, "content": "1"},
    {"role": "assistant", "tool_calls": [{"id": B, "type": "function"}]},
]
MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": A, "input": {"tool_use_id": C}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": B}, {"type": "text", "text": "go"}]},
]
ITEMS = [
    {"role": "user", "content": "hello"},
    {"type": "function_call", "call_id": A, "arguments": json.dumps({"call_id": C})},
    {"type": "function_call_output", "call_id": B, "output": "1"},
]


@pytest.mark.parametrize(
    "body",
    [{"messages": CHAT_MESSAGES}, {"messages": MESSAGES}, {"input": ITEMS}],
    ids=["chat", "messages", "responses"],
)
def test_a_transcripts_ids_are_read_the_latest_first(body: dict[str, Any]) -> None:
    assert transcript_ids(fields(**body)) == (B, A)


@pytest.mark.parametrize(
    "transcript",
    [
        "hello",
        {"tool_call_id": A},
        ["hello"],
        [{"tool_call_id": 1}, {"call_id": [A]}, 7],
        [{"tool_call_id": A, "content": "x" * MAX_READ_BYTES}],
    ],
)
def test_what_is_no_transcript_or_too_long_has_none(transcript: object) -> None:
    assert transcript_ids(fields(messages=transcript)) == ()
    assert transcript_ids({}) == ()


def test_of_many_ids_the_last_ones_are_read() -> None:
    messages = [{"tool_call_id": unique(number)} for number in range(1000)]
    found = transcript_ids(fields(messages=messages))
    assert len(found) == LAST_IDS
    assert found[0] == unique(999)


@pytest.mark.parametrize(("value", "expected"), [(A, A), ("last", None), (1, None), (None, None)])
def test_the_previous_response_is_an_engines_id_or_none(value: object, expected: str | None) -> None:
    assert previous_response(fields(previous_response_id=value)) == expected


RESPONSE = {
    "id": "resp_9f0c53a1d27be846",
    "object": "response",
    "output": [
        {"type": "message", "id": "msg_1"},
        {"type": "function_call", "id": "fc_1", "call_id": A, "name": "read"},
    ],
}
READ = {"type": "function", "function": {"name": "read", "arguments": ""}}
CHUNK = {"id": "chatcmpl-9f0c53a1d27be846", "object": "chat.completion.chunk"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"choices": [{"message": {"tool_calls": [{"id": A, **READ}, {"id": B, **READ}]}}]},
            AnswerIds(None, (A, B), ("read",)),
        ),
        ({"choices": [{"message": {"content": "hi", "tool_calls": None}}], **CHUNK}, AnswerIds()),
        (
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": A, **READ}]}}], **CHUNK},
            AnswerIds(None, (A,), ("read",)),
        ),
        ({"choices": [{"delta": {"tool_calls": [{"id": "call_0", **READ}]}}]}, AnswerIds(tools=("read",))),
        (
            {"content": [{"type": "text"}, {"type": "tool_use", "id": A, "name": "read"}]},
            AnswerIds(None, (A,), ("read",)),
        ),
        ({"content_block": {"type": "tool_use", "id": A, "name": "read"}}, AnswerIds(None, (A,), ("read",))),
        ({"content_block": {"type": "text", "id": A}}, AnswerIds()),
        (RESPONSE, AnswerIds("resp_9f0c53a1d27be846", (A,), ("read",))),
        (
            {"type": "response.completed", "response": RESPONSE},
            AnswerIds("resp_9f0c53a1d27be846", (A,), ("read",)),
        ),
        ({"choices": "none"}, AnswerIds()),
    ],
)
def test_the_ids_of_an_answer_are_read_in_each_dialect(answer: object, expected: AnswerIds) -> None:
    assert read_answer_ids(json.dumps(answer).encode()) == expected


def test_an_answer_of_many_tool_calls_has_a_bounded_number_of_ids() -> None:
    calls = [{"id": unique(number), **READ} for number in range(1000)]
    answer = {"choices": [{"message": {"tool_calls": calls}}]}
    assert len(read_answer_ids(json.dumps(answer).encode()).tool_calls) == MAX_IDS


def test_the_names_of_called_tools_are_bounded() -> None:
    calls = [{"function": {"name": f"tool-{number}"}} for number in range(100)]
    answer = {"choices": [{"message": {"tool_calls": [{"function": {"name": "x" * 2000}}, *calls]}}]}
    found = read_answer_ids(json.dumps(answer).encode()).tools
    assert (len(found), found[0]) == (MAX_TOOLS, "tool-0")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"tool_calls": [{"index": 0, "id": A, "function": {"name": "read", "arguments": ""}}]}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"name": "notes.txt"}'}}]}, False),
        ({"content_block": {"type": "tool_use", "id": A, "name": "read", "input": {}}}, True),
        ({"delta": {"type": "input_json_delta", "partial_json": '{"name": "tool_use"}'}}, False),
        ({"content": '"tool_calls" and "name"'}, False),
    ],
)
def test_only_the_events_that_open_tool_calls_are_decoded(event: object, *, expected: bool) -> None:
    assert opens_tool_call(json.dumps(event).encode()) is expected
