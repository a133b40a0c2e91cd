"""The table of headers by which clients give hints."""

from __future__ import annotations

import msgspec.structs
from tests.fakes.engine import FakeEngine

from autellix_backend.assembly import create_app
from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.priority import Priority
from autellix_backend.gateway.http.openapi import openapi_document
from autellix_backend.identity.hints import HINT_HEADERS, read_hints
from autellix_backend.settings import Settings

CHAT = "/v1/chat/completions"
GIVEN = {
    "X-Autellix-Group": "g",
    "X-Autellix-Priority": "Batch",
    "X-Autellix-Expected-Calls": " 3",
    "X-Autellix-Expected-Tokens": "70",
    "X-Autellix-Expected-Return": "2.5",
    "X-Autellix-Retain": "30",
}


def test_each_hint_but_the_class_has_a_header() -> None:
    """The class follows from the program's name and prompt."""
    fields = {field.name for field in msgspec.structs.fields(Hints)}
    assert {row.field for row in HINT_HEADERS} == fields - {"class_name"}
    assert {row.header for row in HINT_HEADERS} == set(GIVEN)


def test_all_of_them_are_read() -> None:
    hints = read_hints({name.lower(): value for name, value in GIVEN.items()}, {}).record
    assert hints == Hints(
        group="g",
        priority=Priority.BATCH,
        expected_calls=3.0,
        expected_tokens=70.0,
        return_s=2.5,
        retain_s=30.0,
    )


def test_a_call_without_any_makes_no_record() -> None:
    assert read_hints({"x-autellix-program-id": "p"}, {}).record is NO_HINTS


def test_the_document_describes_each_with_its_schema() -> None:
    operation = openapi_document(create_app(Settings(), FakeEngine()))["paths"][CHAT]["post"]
    described = {parameter["name"]: parameter for parameter in operation["parameters"]}
    for row in HINT_HEADERS:
        assert (described[row.header]["in"], described[row.header]["schema"]) == ("header", row.schema)
