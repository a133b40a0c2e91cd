"""The record of hints that each dialect must make, up to what an engine reads of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.hints import Hints
from autellix_backend.gateway.calls.body import parse_body
from autellix_backend.gateway.calls.dialects import CHAT_COMPLETIONS
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.hint_dialects import DIALECT_HINTS
from autellix_backend.identity.hints import HINT_HEADERS
from autellix_backend.identity.identity import Identity, read_identity
from autellix_backend.reports.call_arguments import CallIdentity, call_arguments
from autellix_backend.reports.call_arguments import read_identity as read_arguments

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("hints.json").read_text("utf-8"))
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
EMPTY: dict[str, Any] = {
    "program": "new",
    "source": "request",
    "parent": None,
    "agent": None,
    "last": False,
    "hints": {},
    "stated": {},
    "malformed": [],
}
each = pytest.mark.parametrize(
    "case", VECTORS["cases"], ids=lambda case: f"{case['dialect']}: {case['name']}"
)


def read(case: dict[str, Any]) -> Identity:
    message = {"model": "m", "messages": [], **case.get("body", {})}
    fields = parse_body(json.dumps(message).encode(), CHAT_COMPLETIONS).fields
    return read_identity(case.get("headers", {}), fields, "new")


@each
def test_each_dialect_makes_the_one_record(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(InvalidIdentityError) as caught:
            read(case)
        assert caught.value.field == case["error"]
        assert len(str(caught.value)) < 300
        return
    found = read(case)
    assert {
        "program": found.program,
        "source": found.source,
        "parent": found.aliases.parent,
        "agent": found.aliases.agent,
        "last": found.is_final,
        "hints": msgspec.to_builtins(found.hints),
        "stated": dict(found.stated.sources),
        "malformed": [*found.aliases.malformed, *found.stated.malformed],
    } == {**EMPTY, **case["record"]}


@each
def test_an_engine_reads_the_same_record(case: dict[str, Any]) -> None:
    if "error" in case:
        return
    hints = read(case).hints
    args = call_arguments(CallIdentity(call_id="c", arrival=Arrival("c", "p", hints=hints)))
    assert read_arguments("c", args, None).arrival.hints == hints


def test_each_row_of_the_tables_has_a_case_and_a_line_on_the_page() -> None:
    stated = {
        source for case in VECTORS["cases"] for source in case.get("record", {}).get("stated", {}).values()
    }
    rows = {row.source for row in DIALECT_HINTS} | {row.header for row in HINT_HEADERS}
    assert stated == rows
    page = PAGE.read_text("utf-8")
    for source in rows:
        name = source.removeprefix("vllm_xargs.agentic_context.").removeprefix("nvext.agent_hints.")
        assert f"`{name}`" in page, source


def test_no_row_fills_what_the_record_lacks() -> None:
    fields = {field.name for field in msgspec.structs.fields(Hints)}
    assert {row.field for row in DIALECT_HINTS} <= fields
