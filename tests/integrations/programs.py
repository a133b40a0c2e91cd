"""The example programs of each framework, and the shape of the DAG that a program has made."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

Shape = tuple[Any, ...]


def load(path: Path) -> ModuleType:
    """Import a program by its path."""
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes(dag: Mapping[Any, tuple[Any, ...]]) -> Counter[Shape]:
    """Return each call unfolded into its ancestors; parents come before children in the mapping."""
    found: dict[Any, Shape] = {}
    for call, parents in dag.items():
        found[call] = tuple(sorted((found[parent] for parent in parents), key=repr))
    return Counter(found.values())
