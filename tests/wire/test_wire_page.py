"""The page on the wire protocol lists the names that the code reads and sends."""

from __future__ import annotations

import re
from pathlib import Path

from autellix_backend.engines.base import EngineKind
from autellix_backend.gateway.calls.outbound import IDENTITY_FIELDS, PRIVILEGED_FIELDS
from autellix_backend.gateway.engines.upstream import FORWARDED_HEADERS
from autellix_backend.identity.aliases import ALIASES, PROGRAM_SOURCES, AliasField
from autellix_wire import headers

PAGE = (Path(__file__).parents[2] / "docs/reference/wire.md").read_text(encoding="utf-8")
WORDS = {AliasField.FINAL: "end"}


def rows() -> list[tuple[str, str, str]]:
    """Return source, name and what it gives of each row of the table of names, in its order."""
    found = re.findall(r"^\| `([a-z0-9-]+)` \| (?:body )?`([^`]+)` \| (\w+) \|", PAGE, re.MULTILINE)
    return [(source, name, gives) for source, name, gives in found]


def test_the_table_of_names_is_the_codes_in_its_order() -> None:
    expected = [
        (alias.source, alias.header or alias.body, WORDS.get(alias.field, alias.field.value))
        for alias in ALIASES
    ]
    assert rows() == expected


def test_every_source_of_a_program_is_named() -> None:
    assert [source for source in PROGRAM_SOURCES if f"| `{source}` |" not in PAGE] == []


def test_every_header_and_field_is_named() -> None:
    own = [value for value in vars(headers).values() if isinstance(value, str) and value.startswith("X-")]
    assert len(own) > 10
    named = [*own, *FORWARDED_HEADERS, *PRIVILEGED_FIELDS, *IDENTITY_FIELDS]
    assert [name for name in named if f"`{name}`" not in PAGE] == []
    assert all(kind.value in PAGE.lower() for kind in EngineKind)
