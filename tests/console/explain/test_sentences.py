"""Why a program is on its engine, and why a call left its prefix, in words."""

from __future__ import annotations

from typing import Any

import pytest
from tests.observe.settled_calls import settled_call

from autellix_backend.console.explain.sentences import breaks_text, placement_text, prefix_text
from autellix_backend.core.balance import Placement
from autellix_backend.identity.prefix_breaks import Kind
from autellix_backend.observe.settled_call import PrefixBreak

WITHOUT_PLACE = {Kind.SUB_AGENT, Kind.MODEL, Kind.MOVED, Kind.MADE_WAY, Kind.EVICTED, Kind.UNEXAMINED}


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


@pytest.mark.parametrize("kind", Kind)
def test_each_break_of_a_prefix_is_told_in_words(kind: Kind) -> None:
    found = PrefixBreak(kind, "tools[3].function.description", 61_440, 1_024, 63_100)
    text = prefix_text(settled_call(prefix_break=found))
    head = "61,440 of its 63,100 prompt tokens should have been found in the prefix cache, 1,024 were: "
    assert text.startswith(head)
    assert text.endswith(".")
    assert ("tools[3].function.description" in text) == (kind not in WITHOUT_PLACE)


def test_a_call_that_found_its_prefix_says_how_much() -> None:
    assert prefix_text(settled_call()) == "4 of its 10 prompt tokens were in the prefix cache."
    unknown = settled_call(cached_tokens=None)
    assert prefix_text(unknown) == "Its engine does not say how much of its prompt was in the prefix cache."


def test_the_breaks_of_a_program_are_counted() -> None:
    found = PrefixBreak(Kind.MOVED, "", 2_000, 0, 2_100)
    calls = [settled_call(), settled_call(prefix_break=found), settled_call()]
    assert breaks_text(calls[:1]) == ""
    assert breaks_text(calls).startswith(
        "1 call found less of its context than there was, the last one c: 2,000 of its 2,100"
    )
