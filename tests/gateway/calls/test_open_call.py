"""What becomes of a call's reports and of the usage that its answer states."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.gateway.calls.open_call import (
    CallRequest,
    OpenCall,
    make_arrival,
    make_settled,
)
from autellix_backend.gateway.calls.receipt import Receipt
from autellix_backend.gateway.calls.request_facts import RequestFacts
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.identity.identity import read_identity
from autellix_backend.gateway.lifecycle import CallBegan, Outcome, Usage
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.stores.base import Inherited

STATED = Usage(prompt_tokens=30, completion_tokens=8, cached_tokens=2)


def open_call(record_count: int = 1) -> OpenCall:
    identity = read_identity({"x-autellix-program-id": "p"}, {}, lambda: "c")
    request = CallRequest(
        tenant=Tenant(),
        identity=identity,
        facts=RequestFacts(),
        body_bytes=100,
        record_count=record_count,
        engine="fake-0",
    )
    inherited = Inherited(service_s=0.0, program_service_s=0.0, wait_s=0.0)
    began = CallBegan(
        key="c~1",
        at_s=1.0,
        call_id="c",
        program_id="p",
        program_name=None,
        thread_id="0",
        parents=None,
        level=1,
        entry_service_s=0.0,
    )
    return OpenCall(
        request=request,
        began=began,
        inherited=inherited,
        queued=QueuedCall(make_arrival("c~1", request, inherited)),
        rate_headers={},
        engine="fake-0",
        engine_key="c~1",
        sent_s=2.0,
    )


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
    call = open_call(record_count)
    call.usage = usage
    tokens = {"prompt_tokens": 20, "output_tokens": 5, "cached_tokens": 4} if reported else {}
    settled = make_settled(call, receipt(**tokens), Outcome.OK, 9.0, ended_at_s=0.0)

    assert settled.usage == expected
    assert settled.engine_time_s == (3.0 if reported else 7.0)


def test_facts_show_the_answers_tokens_where_no_report_came() -> None:
    call = open_call()
    call.usage = STATED
    facts = make_settled(call, receipt(estimated=True), Outcome.OK, 9.0, ended_at_s=0.0).facts

    assert (facts.prompt_tokens, facts.output_tokens, facts.cached_tokens) == (30, 8, 2)
    assert (facts.outcome, facts.duration_s, facts.is_estimated) == ("ok", 8.0, True)
