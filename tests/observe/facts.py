"""A settled call for tests, with defaults for what a test does not care about."""

from __future__ import annotations

from typing import Any

from autellix_backend.observe.call_facts import CallFacts

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def facts(**fields: Any) -> CallFacts:
    """Return the facts of a streamed chat."""
    defaults: dict[str, Any] = {
        "ended_at_s": 1_700_000_000.5,
        "call_id": "c",
        "program_id": "p",
        "program_name": "react",
        "session_id": "s",
        "thread_id": "1",
        "parents": ("a", "b"),
        "tenant": "",
        "identity_source": "program-header",
        "engine": "replica-0",
        "operation": "chat",
        "model": "m",
        "is_streaming": True,
        "outcome": "ok",
        "duration_s": 2.5,
        "first_token_s": 0.5,
        "wait_s": 0.25,
        "service_s": 1.5,
        "inherited_service_s": 3.0,
        "level": 2,
        "preemptions": 1,
        "demotions": 2,
        "promotions": 3,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 20,
        "is_estimated": False,
        "is_final": False,
        "tools": (("search", 0.5),),
        "traceparent": TRACEPARENT,
    }
    return CallFacts(**{**defaults, **fields})
