"""A settled call for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from typing import Any

from autellix_backend.core.hints import Hints
from autellix_backend.core.priority import Priority
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import CallStart

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def settled_call(**fields: Any) -> SettledCall:
    """Return a settled, streamed chat; a field of its start, hints or receipt goes there."""
    start: dict[str, Any] = {
        "key": "c~1",
        "call_id": "c",
        "program_id": "p",
        "name": "react",
        "session_id": "s",
        "thread_id": "1",
        "thread_name": None,
        "flags": (),
        "parents": ("a", "b"),
        "interceptions": (("search", 0.5),),
    }
    hints: dict[str, Any] = {"priority": Priority.DEFAULT, "return_s": None}
    receipt: dict[str, Any] = {
        "call_id": "c",
        "program_id": "p",
        "wait_s": 0.25,
        "inactive_s": 0.0,
        "service_s": 1.5,
        "level": 2,
        "preemptions": 1,
        "demotions": 2,
        "promotions": 3,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 20,
    }
    call: dict[str, Any] = {
        "outcome": Outcome.OK,
        "began_s": 7.5,
        "settled_s": 10.0,
        "ended_at_s": 1_700_000_000.5,
        "session_id": "s",
        "tenant": "",
        "identity_source": "program-header",
        "engine": "replica-0",
        "operation": "chat",
        "model": "m",
        "is_streaming": True,
        "body_bytes": 100,
        "record_count": 1,
        "first_token_s": 0.5,
        "sent_for_s": 2.0,
        "inherited_service_s": 3.0,
        "stated_usage": None,
        "is_final": False,
        "traceparent": TRACEPARENT,
        "request_id": None,
        "status": None,
        "reason": None,
        "asked_tools": (),
        "prefix_break": None,
        "runs": (),
        "prefilled_s": None,
    }
    for name, value in fields.items():
        parts = [part for part in (start, hints, receipt, call) if name in part]
        assert parts, f"a settled call has no field {name}"
        for part in parts:
            part[name] = value
    return SettledCall(start=CallStart(**start, hints=Hints(**hints)), receipt=Receipt(**receipt), **call)
