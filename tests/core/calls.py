"""Calls as a queue receives them."""

from __future__ import annotations

from typing import Any

from autellix_backend.core.call import Call


def make_call(call_id: str = "c", program_id: str = "p", **fields: Any) -> Call:
    """Return a call that has just arrived, unless the fields say otherwise."""
    start = {"thread_id": "0", "arrival_s": 0.0, "waiting_since_s": 0.0, "inherited_service_s": 0.0}
    return Call(call_id=call_id, program_id=program_id, **{**start, **fields})
