"""Checks ids, and formats and parses the headers that list parents and tools."""

from __future__ import annotations

from collections.abc import Iterable

MAX_ID_BYTES = 256
MAX_PARENTS = 64
MAX_TOOL_CHARACTERS = 64
MAX_TOOL_S = 1e6
"""Eleven days: a sum of 64 of them is a number that every store can hold."""
ROOT = "-"


class InvalidIdError(ValueError):
    """An id that breaks the wire rules; `field` names the header or JSON field it came from."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}; expected 1 to {MAX_ID_BYTES} printable ASCII characters")
        self.field = field


def check_id(value: str, field: str) -> str:
    """Return `value` stripped of surrounding blanks.

    Raises:
        InvalidIdError: if it is empty, longer than MAX_ID_BYTES, or not printable ASCII.
        TypeError: if it is not text.
    """
    if not isinstance(value, str):
        raise TypeError(f"{field} is a {type(value).__name__}; expected text")
    value = value.strip()
    if not value:
        raise InvalidIdError(field, "is empty")
    if len(value) > MAX_ID_BYTES:
        raise InvalidIdError(field, f"has {len(value)} characters")
    if not (value.isascii() and value.isprintable()):
        raise InvalidIdError(field, "holds a character outside printable ASCII")
    return value


def is_header_value(value: object) -> bool:
    """Return whether a header can carry a value: printable ASCII, not empty, and no blank at either end."""
    return (
        isinstance(value, str)
        and value.isascii()
        and value.isprintable()
        and value != ""
        and value[0] != " "
        and value[-1] != " "
    )


def format_parents(parent_ids: Iterable[str]) -> str:
    """Format a Parent-IDs header; `-` stands for a root."""
    return ",".join(list(parent_ids)[:MAX_PARENTS]) or ROOT


def parse_parents(value: str | None, field: str) -> tuple[str, ...] | None:
    """Parse a Parent-IDs header: None if absent (unknown), empty for a known root.

    Raises:
        InvalidIdError: if one id is malformed or there are more than MAX_PARENTS.
    """
    if value is None:
        return None
    if value.strip() == ROOT:
        return ()
    parents = tuple(check_id(part, field) for part in value.split(","))
    if len(parents) > MAX_PARENTS:
        raise InvalidIdError(field, f"lists {len(parents)} parents, more than {MAX_PARENTS}")
    return parents


def format_interceptions(interceptions: Iterable[tuple[str, float]]) -> str:
    """Format an Interceptions header; characters that a name may not contain become `_`."""
    parts = []
    for name, seconds in list(interceptions)[:MAX_PARENTS]:
        plain = "".join(
            char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in name
        )
        parts.append(f"{plain[:MAX_TOOL_CHARACTERS] or '_'}={min(max(0.0, seconds), MAX_TOOL_S):.3f}")
    return ",".join(parts)


def parse_interceptions(value: str | None, field: str) -> tuple[tuple[str, float], ...]:
    """Parse an Interceptions header; empty if absent.

    Raises:
        InvalidIdError: if a part is not name=seconds, or there are more than MAX_PARENTS.
    """
    if value is None or not value.strip():
        return ()
    parts = value.split(",")
    if len(parts) > MAX_PARENTS:
        raise InvalidIdError(field, f"lists {len(parts)} tools, more than {MAX_PARENTS}")
    return tuple(_parse_interception(part, field) for part in parts)


def _parse_interception(part: str, field: str) -> tuple[str, float]:
    name, _, text = part.partition("=")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= MAX_TOOL_S:
        raise InvalidIdError(field, f"holds {part!r}, which is not name=seconds, {MAX_TOOL_S:g} s at most")
    return check_id(name, field), seconds
