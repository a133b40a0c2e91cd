"""The contract: ids, parents and the bodies of the sessions API."""

from __future__ import annotations

import json

import pytest

from autellix_wire.ids import (
    InvalidIdError,
    check_id,
    format_interceptions,
    format_parents,
    parse_interceptions,
    parse_parents,
)
from autellix_wire.sessions import InvalidBodyError, SessionStart, SessionStarted


def test_id_is_stripped() -> None:
    assert check_id(" a b ", "id") == "a b"


@pytest.mark.parametrize("bad", ["", "  ", "x" * 257, "ü", "a\nb"])
def test_malformed_id_names_its_field(bad: str) -> None:
    with pytest.raises(InvalidIdError, match=r"^X-Some: ") as caught:
        check_id(bad, "X-Some")
    assert caught.value.field == "X-Some"


@pytest.mark.parametrize("parents", [(), ("a",), ("a", "b")])
def test_parents_round_trip(parents: tuple[str, ...]) -> None:
    assert parse_parents(format_parents(parents), "parents") == parents


def test_absent_parents_are_unknown() -> None:
    assert parse_parents(None, "parents") is None


def test_parents_have_a_limit() -> None:
    assert len(format_parents(map(str, range(100))).split(",")) == 64
    with pytest.raises(InvalidIdError, match="lists 65 parents"):
        parse_parents(",".join(map(str, range(65))), "parents")


def test_session_start_leaves_out_what_is_not_given() -> None:
    assert json.loads(SessionStart(session_id="s", client="python").to_bytes()) == {
        "session_id": "s",
        "client": "python",
    }


def test_session_started_round_trips() -> None:
    started = SessionStarted(session_id="s", heartbeat_s=15.0, version="1")
    assert SessionStarted.from_bytes(started.to_bytes()) == started
    assert json.loads(started.to_bytes())["server"] == "autellix"


def test_session_started_without_details() -> None:
    started = SessionStarted.from_bytes(b'{"server": "autellix", "heartbeat_s": 2}')
    assert started == SessionStarted(session_id="", heartbeat_s=2.0, version="")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"server": "vllm", "heartbeat_s": 1},
        {"server": "autellix"},
        {"server": "autellix", "heartbeat_s": 0},
        {"server": "autellix", "heartbeat_s": True},
        {"server": "autellix", "heartbeat_s": "1"},
        {"server": "autellix", "heartbeat_s": float("nan")},
        {"server": "autellix", "heartbeat_s": 1, "version": 1},
    ],
)
def test_other_answers_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidBodyError):
        SessionStarted.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_answer_without_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError):
        SessionStarted.from_bytes(body)


def test_tools_round_trip_within_bounds() -> None:
    assert parse_interceptions("search=1.500,run=0", "tools") == (("search", 1.5), ("run", 0.0))
    longest = format_interceptions([("search", 1e300), ("run", -1.0)])
    assert parse_interceptions(longest, "tools") == (("search", 1e6), ("run", 0.0))


@pytest.mark.parametrize("bad", ["a=1e308", "a=inf", "a=nan", "a=-1", "a=", "a", "=1", "a=1,b=1000001"])
def test_tools_that_no_sum_could_hold_are_refused(bad: str) -> None:
    with pytest.raises(InvalidIdError, match=r"^tools: "):
        parse_interceptions(bad, "tools")
