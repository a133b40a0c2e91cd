"""The usage and cost of a settled call: from its reports and from its answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.open_calls import open_call

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.calls.settlement import make_receipt, make_settled
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.reports.receipt import Receipt

STATED = Usage(prompt_tokens=30, output_tokens=8, cached_tokens=2)


def begun(record_count: int = 1) -> GatewayCall:
    return open_call({"x-autellix-program-id": "p"}, key="c~1", body=b'{"n": %d}' % record_count, sent_s=2.0)


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
    settled = make_settled(call, receipt(**tokens), Outcome.OK, 9.0, 0.0)

    assert settled.answer_usage == expected
    assert settled.engine_usage == (Usage(20, 5, 4) if reported else usage)
    assert settled.engine_time_s == (3.0 if reported else 7.0)


@pytest.mark.parametrize(
    ("outcome", "events", "service_s"),
    [
        (Outcome.ABORTED, 0, 0.5),
        (Outcome.ABORTED, 1000, 0.5),
        (Outcome.UNAVAILABLE, 0, 0.0),
        (Outcome.UNAVAILABLE, 1000, 5.0),
        (Outcome.REJECTED, 0, 0.0),
        (Outcome.ENGINE_ERROR, 0, 0.0),
        (Outcome.ENGINE_ERROR, 1000, 5.0),
    ],
)
def test_what_is_estimated_of_a_call_without_an_answer(
    outcome: Outcome, events: int, service_s: float
) -> None:
    """An aborted call ran no longer than since it was sent; a stream that broke off ran for its events."""
    call = open_call({}, key="c~1", sent_s=2.0)
    call.arrival = Arrival("c~1", "p", context=Context(47_000))
    call.answer.streamed_events = events
    receipt = make_receipt(call, outcome, SchedulerConfig(), 2.5)
    assert receipt.service_s >= service_s
    assert outcome is not Outcome.ABORTED or receipt.service_s == service_s
    assert service_s or not receipt.service_s
