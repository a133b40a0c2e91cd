"""Reading a call's body without touching it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.types import Message

from autellix_backend.gateway.calls.body import bounded, parse_body
from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.tenancy.intake import Intake
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.settings import TenantLimits

BY_PATH = {row.path: row for row in DIALECTS}
COMPLETIONS = BY_PATH["/v1/completions"]
CHAT_COMPLETIONS = BY_PATH["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"{}", 1),
        (b'{"n": 3}', 3),
        (b'{"n": "3"}', 3),
        (b'{"n": [3]}', 1),
        (b'{"n": true}', 1),
        (b'{"n": -1}', 1),
        (b'{"prompt": "a"}', 1),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": []}', 1),
        (b'{"prompt": ["a", "b"], "n": 2}', 4),
        (b'{"prompt": [[1], [2], [3]]}', 3),
        (b'{"prompt": [ "a" ,"b"]}', 2),
    ],
)
def test_records_are_counted_by_prompts_and_choices(body: bytes, count: int) -> None:
    assert parse_body(body, COMPLETIONS).record_count == count


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"tools": [{}]}, True),
        ({"tools": [{}], "tool_choice": None}, True),
        ({"tools": [{}], "tool_choice": "required"}, True),
        ({"tools": [{}], "tool_choice": {"type": "any"}}, True),
        ({"tools": [{}], "tool_choice": ["odd"]}, True),
        ({"tools": [{}], "tool_choice": {"type": "function", "function": {"name": "form"}}}, False),
        ({"tools": [{}], "tool_choice": {"type": "tool", "name": "form"}}, False),
    ],
)
def test_a_body_offers_tools_unless_one_must_be_called(fields: dict[str, Any], *, expected: bool) -> None:
    assert parse_body(json.dumps(fields).encode(), CHAT_COMPLETIONS).offers_tools is expected


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_unknown_counts_are_left_out(path: str) -> None:
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH[path]).record_count == 1
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH["/v1/chat/completions"]).record_count == 2


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", {"model": "m", "stream": True}, ("chat", "m", True)),
        ("/v1/completions", {"model": "m", "stream": False}, ("text_completion", "m", False)),
        ("/v1/embeddings", {}, ("embeddings", None, False)),
        ("/v1/responses", {"model": 7, "stream": "yes"}, ("chat", None, False)),
        ("/v1/messages", {"model": "x" * 1000, "stream": None}, ("chat", "x" * 256, False)),
    ],
)
def test_a_request_is_read_for_logs(path: str, fields: dict[str, Any], expected: tuple[object, ...]) -> None:
    dialect = BY_PATH[path]
    body = parse_body(json.dumps(fields).encode(), dialect)

    assert (dialect.operation, body.model, body.is_streaming) == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"model": [' + b"[]," * 10**6 + b"[]]}", id="lists"),
        pytest.param(b'{"model": "m"' + b', "": 1' * 10**6 + b"}", id="fields"),
        pytest.param(b'{"prompt": [' + b'"",' * 10**6 + b'""]}', id="prompts"),
        pytest.param(b'{"prompt": [' + b"1," * 10**6 + b"1]}", id="tokens"),
        pytest.param(b'{"a": ' + b"[" * 10**6, id="depth"),
        pytest.param(b"[" * 5000, id="depth of a small body"),
        pytest.param(b'{"\xff": 1}', id="encoding"),
        pytest.param(b'{"vllm_xargs": {"\xff": 1}}', id="encoding below"),
    ],
)
async def test_a_body_that_would_delay_others_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        await checked(body)
        parse_body(body, COMPLETIONS)


async def test_a_tokenised_prompt_may_be_long() -> None:
    text = b'{"prompt": [' + b"128000," * 390_000 + b"1]}"
    await checked(text)
    body = parse_body(text, COMPLETIONS)
    assert body.record_count == 1


async def test_a_text_may_hold_much_json() -> None:
    said = json.dumps({"messages": [{"role": "tool", "content": json.dumps([{"a": 1}] * 200_000)}]})
    await checked(said.encode())


async def checked(body: bytes) -> None:
    """Read a body as that of a request; a long one is in the turn of its tenant."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    intake = Intake(2**30, 2**30, None, lambda *_: None)
    with intake.hold(Tenant()) as hold:
        assert await hold.read({}, receive, 2**30) == body


@pytest.mark.parametrize(("name", "value"), [("model", "1e999"), ("stream", "1" * 5000), ("n", "1e400")])
def test_a_value_that_python_refuses_is_left_to_the_engine(name: str, value: str) -> None:
    body = parse_body(f'{{"{name}": {value}}}'.encode(), COMPLETIONS)
    assert (body.is_streaming, body.record_count) == (False, 1)
    assert bytes(body.fields[name]) == value.encode()


LIMITS = TenantLimits(max_output_tokens=20)
BOUNDS = {dialect.path: dialect.output_fields for dialect in DIALECTS if dialect.output_fields}


def limited(path: str, body: str) -> dict[str, Any]:
    dialect = BY_PATH[path]
    fields = bounded(parse_body(body.encode(), dialect), LIMITS, dialect).fields
    return {name: json.loads(bytes(raw)) for name, raw in fields.items()}


@pytest.mark.parametrize("path", BOUNDS)
def test_only_the_fields_of_a_dialect_bound_its_output(path: str) -> None:
    usual, *others = BOUNDS[path]
    foreign = {"max_tokens", "max_completion_tokens", "max_output_tokens"} - {usual, *others}
    for name in foreign:
        assert limited(path, f'{{"{name}": 1}}')[usual] == 20
    assert limited(path, f'{{"{usual}": null}}')[usual] == 20
    for name in (usual, *others):
        assert limited(path, f'{{"{name}": "20"}}') == {name: "20"}
        for value in ("21", '"300"', "21.0", "[20]", "1e400", '"many"'):
            with pytest.raises(InvalidRequestError, match=name):
                limited(path, f'{{"{name}": {value}}}')


def test_every_name_that_a_dialect_reads_is_checked() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens is 8000"):
        limited("/v1/chat/completions", '{"max_completion_tokens": 1, "max_tokens": 8000}')


@pytest.mark.parametrize("more", ['"n": 2', '"best_of": 2', '"n": "2"', '"n": 2, "use_beam_search": true'])
def test_each_answer_counts(more: str) -> None:
    path = "/v1/completions"
    assert limited(path, f"{{{more}}}")["max_tokens"] == 10
    assert limited(path, f'{{"max_tokens": 10, {more}}}')["max_tokens"] == 10
    with pytest.raises(InvalidRequestError, match="11 for each of 2 answers; expected 20 at most"):
        limited(path, f'{{"max_tokens": 11, {more}}}')


def test_each_prompt_counts() -> None:
    assert limited("/v1/completions", '{"prompt": ["a", "b"], "n": 5}')["max_tokens"] == 2
    with pytest.raises(InvalidRequestError, match="n: the call asks for 21 answers; expected 20 at most"):
        limited("/v1/completions", '{"n": 21}')


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_body_is_read_in_each_encoding_that_vllm_reads(encoding: str) -> None:
    body = parse_body('{"model": "möwe"}'.encode(encoding), CHAT_COMPLETIONS)
    assert body.model == "möwe"


def test_a_field_whose_name_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        parse_body(b'{"\\ud800": 1}', CHAT_COMPLETIONS)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", '[1, {"a": NaN}]'])
def test_numbers_that_only_python_reads_are_passed_on(number: str) -> None:
    body = parse_body(f'{{"model": "m", "custom": {number}}}'.encode(), CHAT_COMPLETIONS)
    assert bytes(body.fields["custom"]).decode() == number
    assert body.model == "m"


def test_requests_without_output_get_no_bound() -> None:
    assert limited("/v1/embeddings", '{"input": "a"}') == {"input": "a"}
