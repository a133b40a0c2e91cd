"""Which source names the program, and what is refused."""

from __future__ import annotations

import pytest

from autellix_backend.core.estimate import Hint
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.identity import Identity, identify


def read(body_session: object = None, **headers: str) -> Identity:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return identify(named, body_session, lambda: "made")


@pytest.mark.parametrize(
    ("headers", "body_session", "program", "source"),
    [
        ({"x_autellix_program_id": "p", "x_autellix_session_id": "s"}, "b", "p", "program-header"),
        ({"x_autellix_session_id": "s", "x_session_id": "v"}, "b", "s", "session-header"),
        ({"x_session_id": "v"}, "b", "v", "x-session-id"),
        ({}, "b", "b", "body-session-id"),
        ({}, None, "made", "request"),
    ],
)
def test_the_first_source_that_matches_wins(
    headers: dict[str, str], body_session: object, program: str, source: str
) -> None:
    identity = read(body_session, **headers)
    assert (identity.program, identity.source) == (program, source)


def test_all_headers_are_read() -> None:
    identity = read(
        x_autellix_program_id=" p ",
        x_autellix_program_name="react",
        x_autellix_thread_id="3",
        x_autellix_call_id="c",
        x_autellix_parent_ids="a,b",
        x_autellix_flags="implicit, truncated",
        x_autellix_final="true",
    )
    assert identity == Identity(
        session=None,
        program="p",
        name="react",
        thread="3",
        call="c",
        parents=("a", "b"),
        flags=("implicit", "truncated"),
        is_final=True,
        source="program-header",
    )


def test_unknown_parents_differ_from_none() -> None:
    assert read().parents is None
    assert read(x_autellix_parent_ids="-").parents == ()


@pytest.mark.parametrize("value", ["", " ", "\x00", "é", "x" * 257])
def test_a_malformed_id_names_its_header(value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(x_autellix_call_id=value)
    assert caught.value.param == "X-Autellix-Call-ID"


def test_expectations_are_read() -> None:
    assert read().hint is None
    assert read(x_autellix_expected_calls=" 12 ").hint == Hint(calls=12.0)
    assert read(x_autellix_expected_tokens="300").hint == Hint(tokens=300.0)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many", "9" * 13, "\u00b2"])
def test_a_malformed_expectation_names_its_header(value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(x_autellix_expected_calls=value)
    assert caught.value.param == "X-Autellix-Expected-Calls"
