"""Rules for names that no linter checks."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SIDES = (("backend",), ("sdk", "integrations"))
"""The backend and the client: both have an identity and a receipt, and users read the client's."""


@pytest.mark.parametrize("rooms", SIDES)
def test_class_names_are_unique(rooms: tuple[str, ...]) -> None:
    """Private ones included: a name in a traceback or a search leads to one class."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    sources = (path for room in rooms for path in (REPOSITORY / room).rglob("*.py"))
    for path in sorted(sources):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(REPOSITORY)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
