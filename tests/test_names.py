"""Rules of names that no linter knows."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

BACKEND = Path(__file__).parents[1] / "backend"


def test_class_names_of_the_backend_are_unique() -> None:
    """Private ones too: a name in a traceback or a search leads to one class."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(BACKEND.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(BACKEND)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
