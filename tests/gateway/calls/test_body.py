"""Reading a call's body without touching it."""

from __future__ import annotations

import json

import pytest

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import BY_PATH
from autellix_backend.gateway.calls.receipt import Receipt, splice_receipt

COMPLETIONS = BY_PATH["/v1/completions"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"{}", 1),
        (b'{"n": 3}', 3),
        (b'{"n": "3"}', 1),
        (b'{"n": -1}', 1),
        (b'{"prompt": "a"}', 1),
        (b'{"prompt": [1, 2, 3]}', 1),
        (b'{"prompt": []}', 1),
        (b'{"prompt": ["a", "b"], "n": 2}', 4),
        (b'{"prompt": [[1], [2], [3]]}', 3),
    ],
)
def test_records_are_counted_by_prompts_and_choices(body: bytes, count: int) -> None:
    assert parse_body(body, COMPLETIONS).record_count == count


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_what_an_endpoint_does_not_know_is_not_counted(path: str) -> None:
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH[path]).record_count == 1
    assert parse_body(b'{"prompt": ["a", "b"], "n": 2}', BY_PATH["/v1/chat/completions"]).record_count == 2


@pytest.mark.parametrize("content", [b'{"a": 1}', b"{}", b'{"a": 1} \n', b"{ }"])
def test_the_receipt_is_the_last_field_of_an_object(content: bytes) -> None:
    receipt = Receipt(call_id="c", program_id="p", wait_s=0.0, service_s=1.0)
    spliced = json.loads(splice_receipt(content, receipt))
    assert list(spliced)[-1] == "autellix"
    assert spliced.pop("autellix")["program_id"] == "p"
    assert spliced == json.loads(content)


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b"text"])
def test_what_is_no_object_stays_as_it_is(content: bytes) -> None:
    receipt = Receipt(call_id="c", program_id="p", wait_s=0.0, service_s=1.0)
    assert splice_receipt(content, receipt) == content
