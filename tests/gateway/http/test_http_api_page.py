"""The page of the HTTP API agrees with the code's tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.engine import FakeEngine

from autellix_backend.assembly import create_app
from autellix_backend.gateway import errors
from autellix_backend.gateway.calls.dialects import DIALECTS, Dialect
from autellix_backend.gateway.errors import ANTHROPIC_TYPES, GatewayError
from autellix_backend.gateway.http.openapi import openapi_document
from autellix_backend.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its own head."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def paths_of(kind: str) -> list[str]:
    """Return the paths that the paragraph of a kind of endpoint lists."""
    paragraph = PAGE.split(f"\n**{kind}**")[1].split("\n\n")[0]
    return re.findall(r"`((?:GET|POST) [^`]+)`", paragraph)


def plain(path: str) -> str:
    return path.replace(":path}", "}")


def test_every_engine_endpoint_is_documented_correctly() -> None:
    ordered = [row for row in DIALECTS if row.makes_call and row.takes_identity]
    others = [row for row in DIALECTS if row.makes_call and not row.takes_identity]
    forwarded = [row for row in DIALECTS if not row.makes_call]

    def names(dialects: Iterable[Dialect]) -> list[str]:
        return [f"{row.method} {plain(row.path)}" for row in dialects]

    told = rows("The engine's endpoints")
    assert [path.strip("`") for path, _ in told] == names(ordered)
    assert paths_of("Other calls") == names(others)
    assert paths_of("Pass-through requests") == names(forwarded)
    ends: list[str] = []
    for _, end in told:
        ends.append(ends[-1] if end == "the same" else end)
    assert [
        row.stream_ends[0].decode() in end for row, end in zip(ordered, ends, strict=True) if row.stream_ends
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
    told = {(status, code) for status, code, _ in rows("Errors")}
    for found in classes:
        assert (str(int(found.status)), f"`{found.code}`") in told


def test_every_type_of_anthropic_is_documented_with_its_status() -> None:
    for status, kind in ANTHROPIC_TYPES.items():
        assert re.search(rf"{int(status)}\s`{kind}`", PAGE)
    assert "else `invalid_request_error` or, from 500 on, `api_error`" in " ".join(PAGE.split())
