"""The hints of a program are checked where they enter, joined where its scopes meet, and sent as headers."""

from __future__ import annotations

from typing import Any

import pytest

from autellix._programs.hints import NO_HINTS, ProgramHints
from autellix_wire import headers as names


@pytest.mark.parametrize(
    ("hint", "error"),
    [
        ({"group": 7}, TypeError),
        ({"group": ""}, ValueError),
        ({"priority": "urgent"}, ValueError),
        ({"priority": 1}, ValueError),
        ({"expected_calls": 0}, ValueError),
        ({"expected_calls": True}, ValueError),
        ({"expected_tokens": 2.5}, ValueError),
    ],
)
def test_a_bad_hint_is_refused(hint: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{next(iter(hint))}|program"):
        ProgramHints(**hint)


def test_a_later_scope_of_a_program_keeps_what_it_leaves_open() -> None:
    first, second = (
        ProgramHints(group="g", expected_calls=3),
        ProgramHints(expected_calls=2, priority="batch"),
    )
    both = second.over(first)
    assert (both.group, both.priority, both.expected_calls) == ("g", "batch", 2)
    assert NO_HINTS.over(first) is first
    assert first.over(NO_HINTS) is first


def test_the_headers_count_the_calls_down_and_say_the_tokens_once() -> None:
    hints = ProgramHints(group="g", priority="interactive", expected_calls=2, expected_tokens=90)
    sent = []
    for made in range(3):
        headers: dict[str, str] = {}
        hints.add_expected(headers, made)
        sent.append(headers)
    assert sent == [
        {names.EXPECTED_CALLS: "2", names.EXPECTED_TOKENS: "90"},
        {names.EXPECTED_CALLS: "1"},
        {},
    ]
    lasting: dict[str, str] = {}
    hints.add_lasting(lasting)
    assert lasting == {names.GROUP: "g", names.PRIORITY: "interactive"}
    NO_HINTS.add_lasting(lasting)
    NO_HINTS.add_expected(lasting, 0)
    assert len(lasting) == 2
