"""Why a program is on its engine, in words."""

from __future__ import annotations

from typing import Any

import pytest

from autellix_backend.console.explain.sentences import placement_text
from autellix_backend.core.balance import Placement


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "placed on e2, where its 5,200-token context fits at once."),
        ({"wait_s": 3.0}, "placed on e2, where its 5,200-token context would wait about 3.0 s for memory."),
        (
            {"context_tokens": 200, "shared_tokens": 5000},
            (
                "placed on e2, where its 200-token context fits at once; it shares 5,000 more tokens with "
                "programs there."
            ),
        ),
        (
            {"left": "e1", "left_wait_s": 4.0},
            (
                "moved from e1 to e2: its 5,200-token context would have waited 4.0 s for memory on e1 and "
                "fits at once on e2."
            ),
        ),
        (
            {"left": "e1", "left_wait_s": 4.0, "wait_s": 1.5},
            (
                "moved from e1 to e2: its 5,200-token context would have waited 4.0 s for memory on e1 and "
                "would wait about 1.5 s for memory on e2."
            ),
        ),
        (
            {"left": "e1"},
            (
                "moved from e1 to e2: calls waited longer on e1 than its 5,200-token context takes to "
                "recompute."
            ),
        ),
    ],
)
def test_the_reason_is_stated(fields: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"engine": "e2", "context_tokens": 5200, "wait_s": 0.0}
    assert placement_text(Placement(**(defaults | fields))) == f"It was {text}"


def test_where_memory_decided_nothing_there_is_no_text() -> None:
    assert placement_text(None) == ""
