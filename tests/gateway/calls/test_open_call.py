"""What becomes of a call's reports and of the usage that its answer states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.observe.facts import TRACEPARENT

from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.gateway.calls.open_call import CallRequest, OpenCall, Receipt, open_call
from autellix_backend.gateway.identity.identity import read_identity
from autellix_backend.gateway.lifecycle import Outcome, Usage
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.stores.base import Inherited

STATED = Usage(prompt_tokens=30, completion_tokens=8, cached_tokens=2)


def begun(record_count: int = 1) -> OpenCall:
    headers = {"x-autellix-program-id": "p", "traceparent": TRACEPARENT}
    request = CallRequest(
        dialect=CHAT_COMPLETIONS,
        tenant=Tenant(),
        identity=read_identity(headers, {}, lambda: "c"),
        headers=headers,
        body=parse_body(b'{"n": %d}' % record_count, CHAT_COMPLETIONS),
    )
    call = open_call(
        request,
        Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0),
        key="c~1",
        engine="fake-0",
        at_s=1.0,
        level=1,
        entry_service_s=0.0,
        rate_headers={},
    )
    call.sent_s = 2.0
    return call


def receipt(**fields: Any) -> Receipt:
    return Receipt(call_id="c", program_id="p", wait_s=0.0, service_s=3.0, **fields)


@pytest.mark.parametrize(
    ("record_count", "usage", "reported", "expected"),
    [
        (1, STATED, True, Usage(20, 5, 4)),
        (1, None, True, Usage(20, 5, 4)),
        (1, STATED, False, STATED),
        (1, None, False, None),
        (2, STATED, True, STATED),
        (2, None, True, Usage(20, 5, 4)),
    ],
)
def test_the_prompt_of_several_choices_counts_once(
    record_count: int, usage: Usage | None, reported: bool, expected: Usage | None
) -> None:
    """Each choice's report counts the whole prompt; the answer counts it once, and is used only for that."""
    call = begun(record_count)
    call.usage = usage
    tokens = {"prompt_tokens": 20, "output_tokens": 5, "cached_tokens": 4} if reported else {}
    settled = call.settled(receipt(**tokens), Outcome.OK, 9.0, ended_at_s=0.0)

    assert settled.usage == expected
    assert settled.engine_time_s == (3.0 if reported else 7.0)


def test_facts_show_the_answers_tokens_where_no_report_came() -> None:
    call = begun()
    call.usage = STATED
    facts = call.settled(receipt(estimated=True), Outcome.OK, 9.0, ended_at_s=0.0).facts

    assert (facts.prompt_tokens, facts.output_tokens, facts.cached_tokens) == (30, 8, 2)
    assert (facts.outcome, facts.duration_s, facts.is_estimated) == ("ok", 8.0, True)
    assert facts.traceparent == TRACEPARENT


@pytest.mark.parametrize("content", [b'{"a": 1}', b"{}", b'{"a": 1} \n', b"{ }"])
def test_the_receipt_is_the_last_field_of_an_object(content: bytes) -> None:
    spliced = json.loads(receipt().spliced_into(content))
    assert list(spliced)[-1] == "autellix"
    assert spliced.pop("autellix")["program_id"] == "p"
    assert spliced == json.loads(content)


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b"text"])
def test_an_answer_that_is_no_object_is_unchanged(content: bytes) -> None:
    assert receipt().spliced_into(content) == content
