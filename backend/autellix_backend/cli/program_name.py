"""How commands show a program's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autellix_wire.flags import IMPLICIT


def shown_name(program: Mapping[str, Any]) -> str:
    """Return a program's name, and that it is implicit if it is; empty without a name."""
    name = program["name"] or ""
    return f"{IMPLICIT}: {name}".removesuffix(": ") if is_implicit(program) else str(name)


def is_implicit(program: Mapping[str, Any]) -> bool:
    """Return whether a program is a process that made calls outside of any program."""
    return IMPLICIT in program["flags"]
