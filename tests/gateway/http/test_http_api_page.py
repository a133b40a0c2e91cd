"""The page of the HTTP API agrees with the code's tables."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fakes.engine import FakeEngine

from autellix_backend.assembly import create_app
from autellix_backend.gateway import errors
from autellix_backend.gateway.calls.dialects import DIALECTS
from autellix_backend.gateway.errors import ANTHROPIC_TYPES, GatewayError
from autellix_backend.gateway.http.openapi import openapi_document
from autellix_backend.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its own head."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def plain(path: str) -> str:
    return path.replace(":path}", "}")


def test_every_engine_endpoint_is_documented_correctly() -> None:
    expected = [
        (
            f"`{row.method} {plain(row.path)}`",
            "call" if row.makes_call else "pass-through",
            ("yes" if row.takes_identity else "no") if row.makes_call else "",
        )
        for row in DIALECTS
    ]
    told = [(path, kind, identity) for path, kind, identity, _ in rows("The engine's endpoints")]
    assert told == expected
    ends = [end for *_, end in rows("The engine's endpoints")]
    assert [
        row.stream_ends[0].decode() in end for row, end in zip(DIALECTS, ends, strict=True) if row.stream_ends
    ] == [True] * 4


def test_errors_have_anthropics_form_under_v1_messages_alone() -> None:
    anthropic = [row.path for row in DIALECTS if row.errors.value == "anthropic"]
    assert anthropic == [row.path for row in DIALECTS if row.path.startswith("/v1/messages")]


def test_every_own_path_is_documented_with_its_errors() -> None:
    told = {
        path: set(re.findall(r"\d+", refused)) for path, _, refused in rows("Sessions, programs, operators")
    }
    forwarded = {plain(row.path) for row in DIALECTS}
    paths = openapi_document(create_app(Settings(), FakeEngine()))["paths"]
    assert told == {
        f"`{method.upper()} {path}`": {status for status in operation["responses"] if status >= "400"}
        - {"401", "500"}
        for path, operations in paths.items()
        for method, operation in operations.items()
        if path not in forwarded
    }


def test_every_error_is_documented_with_its_code() -> None:
    classes = [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, GatewayError) and "code" in vars(found)
    ]
    told = {(status, code, kind) for status, code, kind, *_ in rows("Errors")}
    for found in classes:
        other = "api_error" if found.status >= 500 else "invalid_request_error"
        kind = ANTHROPIC_TYPES.get(found.status, other)
        assert (str(int(found.status)), f"`{found.code}`", f"`{kind}`") in told
