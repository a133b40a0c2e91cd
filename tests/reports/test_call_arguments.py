from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import msgspec.structs
import pytest

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.hints import Hints
from autellix_backend.core.priority import Priority
from autellix_backend.reports.call_arguments import (
    MAX_ENDED,
    MAX_ID_LENGTH,
    CallIdentity,
    call_arguments,
    read_identity,
)
from autellix_wire import engine_args

ANONYMOUS = Arrival("r", "r", is_identified=False)


def test_reads_what_the_gateway_sends() -> None:
    """All keys arrive in the identity."""
    args = {
        "autellix_program": "p",
        "autellix_call": "c",
        "autellix_thread": "2",
        "autellix_service_s": 1.5,
        "autellix_program_service_s": 4,
        "autellix_wait_s": 2,
        "autellix_age_s": 7.5,
        "autellix_work": 1000,
        "autellix_spread": 1.25,
        "autellix_class": "agent",
        "autellix_group": "g17",
        "autellix_priority": "batch",
        "autellix_return_s": 90,
        "autellix_retain_s": 30,
        "autellix_ended": '["a", "b"]',
        "autellix_gateway": "g",
    }
    arrival = Arrival(
        "r",
        "p",
        thread_id="2",
        service_s=4.0,
        inherited_s=1.5,
        wait_s=2.0,
        age_s=7.5,
        work=1000.0,
        hints=Hints(class_name="agent", group="g17", priority=Priority.BATCH, return_s=90.0, retain_s=30.0),
    )
    expected = CallIdentity(call_id="c", arrival=arrival, gateway="g", spread=1.25, ended=("a", "b"))
    assert expected == read_identity("r", args, "session")


def test_what_a_gateway_writes_is_read_alike() -> None:
    hints = Hints(
        class_name="agent",
        group="g17",
        priority=Priority.INTERACTIVE,
        return_s=0.5,
        retain_s=30.0,
        expected_calls=3.0,
        expected_tokens=70.0,
    )
    assert all(getattr(hints, field.name) != field.default for field in msgspec.structs.fields(Hints))
    arrival = Arrival(
        "r",
        "p",
        is_identified=False,
        thread_id="2",
        tenant="acme",
        weight=2.0,
        service_s=4.0,
        inherited_s=1.5,
        wait_s=2.0,
        age_s=7.5,
        work=1000.0,
        hints=hints,
        parents=("b", "a"),
    )
    identity = CallIdentity(
        call_id="c", arrival=arrival, is_last=True, spread=1.25, ended=("a", "b"), gateway="g"
    )
    assert read_identity("r", call_arguments(identity), None) == identity


def test_what_is_unknown_is_not_written() -> None:
    identity = CallIdentity(call_id="c", arrival=Arrival("r", "p"))
    args = call_arguments(identity)
    assert args == {"autellix_program": "p", "autellix_call": "c", "autellix_thread": "0"}
    assert read_identity("r", args, None) == identity


def test_the_arguments_of_another_release_are_ignored() -> None:
    args = {"autellix_program": "p", "autellix_unheard_of": 9.0, "autellix": {"program": "q"}, 7: 7}
    assert read_identity("r", args, None) == read_identity("r", {"autellix_program": "p"}, None)


def test_hints_have_the_names_that_the_client_uses() -> None:
    names = {engine_args.PREFIX + field.encode_name for field in msgspec.structs.fields(Hints)}
    assert {engine_args.CLASS, engine_args.GROUP, engine_args.PRIORITY} <= names


def test_a_session_stands_in_for_a_program() -> None:
    """Without a program id the session is the program."""
    identity = read_identity("r", None, "session")
    assert (identity.program_id, identity.call_id, identity.arrival.thread_id) == ("session", "r", "0")


def test_an_anonymous_request_is_its_own_program() -> None:
    """Nothing given: the request id is call and program."""
    assert CallIdentity(call_id="r", arrival=ANONYMOUS) == read_identity("r", {}, None)


@pytest.mark.parametrize(("value", "is_identified"), [(1, False), (None, True), (0, True), ("1", True)])
def test_a_gateway_says_which_programs_nothing_identified(value: Any, is_identified: bool) -> None:
    args = {"autellix_program": "p", "autellix_unidentified": value}
    arrival = read_identity("r", args, None).arrival
    assert (arrival.program_id, arrival.is_identified) == ("p", is_identified)


@pytest.mark.parametrize("value", [7, None, [], {}, "", "x" * (MAX_ID_LENGTH + 1), b"p", True])
def test_an_unusable_id_counts_as_absent(value: Any) -> None:
    """Ids that are no short text are ignored."""
    args = {"autellix_program": value, "autellix_call": value, "autellix_thread": value}
    assert CallIdentity(call_id="r", arrival=ANONYMOUS) == read_identity("r", args, value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, -math.inf, "1", True, None, [], 10**400])
def test_unusable_seconds_count_as_absent(value: Any) -> None:
    """Totals that are no non-negative, finite number are ignored."""
    names = (
        "service_s",
        "program_service_s",
        "wait_s",
        "age_s",
        "work",
        "spread",
        "return_s",
    )
    identity = read_identity("r", {f"autellix_{name}": value for name in names}, None)
    kept = ("service_s", "inherited_s", "wait_s", "age_s", "work")
    found = [identity.spread, identity.arrival.hints.return_s]
    assert [*found, *(getattr(identity.arrival, name) for name in kept)] == [None] * len(names)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a",
        '"a"',
        "[1]",
        '["a", null]',
        '[""]',
        '{"a": 1}',
        '["a"',
        "[" * 100_000,
        '["\ud800"]',
        ["a"],
        7,
        None,
        json.dumps(["x" * (MAX_ID_LENGTH + 1)]),
        json.dumps(["x"] * (MAX_ENDED + 1)),
    ],
)
def test_an_unusable_list_of_ended_programs_counts_as_absent(value: Any) -> None:
    """One bad id spoils the list, as does one too many."""
    assert read_identity("r", {"autellix_ended": value}, None).ended == ()


def test_reads_as_many_ended_programs_as_a_call_may_name() -> None:
    ids = ["x" * MAX_ID_LENGTH] * MAX_ENDED
    assert read_identity("r", {"autellix_ended": json.dumps(ids)}, None).ended == tuple(ids)


@pytest.mark.parametrize("value", [7, None, [], "", "x" * (MAX_ID_LENGTH + 1), True])
def test_an_unusable_class_or_group_has_no_name(value: Any) -> None:
    arrival = read_identity("r", {"autellix_class": value, "autellix_group": value}, None).arrival
    assert (arrival.hints.class_name, arrival.hints.group) == ("", "")


@pytest.mark.parametrize(("value", "expected"), [(1, True), (1.0, True), (0, False), ("1", False)])
def test_reads_which_call_is_a_programs_last(value: Any, expected: bool) -> None:
    assert read_identity("r", {"autellix_last": value}, None).is_last is expected


def test_reads_the_tenant_and_its_weight() -> None:
    identity = read_identity("r", {"autellix_tenant": "acme", "autellix_weight": 2}, None)
    assert (identity.arrival.tenant, identity.arrival.weight) == ("acme", 2.0)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e9, 1e-9, "2", True, None, [], 10**400])
def test_an_invalid_weight_is_the_default(value: Any) -> None:
    """A tenant of no usable name is the one without a name."""
    identity = read_identity("r", {"autellix_tenant": 7, "autellix_weight": value}, None)
    assert (identity.arrival.tenant, identity.arrival.weight) == ("", 1.0)


@pytest.mark.parametrize("extra_args", ["text", 3, [("autellix_program", "p")]])
def test_extra_args_of_another_kind_are_ignored(extra_args: Any) -> None:
    """Whatever is no mapping says nothing."""
    assert read_identity("r", extra_args, None).program_id == "r"


@pytest.mark.parametrize("value", ["urgent", "BATCH", "", 1, -1, None, True, [], {}, math.nan])
def test_an_unknown_priority_is_the_default_one(value: Any) -> None:
    """Nothing that a request states can fail the engine."""
    assert read_identity("r", {"autellix_priority": value}, None).arrival.hints.priority is Priority.DEFAULT


@pytest.mark.parametrize(("value", "expected"), [("-", ()), ("a", ("a",)), ("a,b", ("a", "b"))])
def test_reads_the_parents(value: Any, expected: tuple[str, ...]) -> None:
    assert read_identity("r", {"autellix_parents": value}, None).arrival.parents == expected


@pytest.mark.parametrize(
    "value", ["", ",", "a,\n", "a," + "x" * 257, ",".join("a" * 65), 7, None, ["a"], b"a"]
)
def test_unusable_parents_are_unknown(value: Any) -> None:
    assert read_identity("r", {"autellix_parents": value}, None).arrival.parents is None


def test_an_id_that_cannot_be_sent_counts_as_absent() -> None:
    """JSON may hold halves of surrogate pairs, which no report of the call could."""
    args = {"autellix_program": "\ud800", "autellix_call": "caf\u00e9", "autellix_tenant": "a\udfff"}
    identity = read_identity("r", args, "\ud800")

    assert (identity.program_id, identity.call_id, identity.arrival.tenant) == ("r", "caf\u00e9", "")


def test_the_page_lists_every_hint() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/wire.md").read_text(encoding="utf-8")
    names = [engine_args.PREFIX + hint.encode_name for hint in msgspec.structs.fields(Hints)]
    assert [name for name in names if f"`{name}`" not in page] == []
