"""Rules for ids on the wire: at most 256 bytes of printable ASCII, and how parent ids are listed."""

from __future__ import annotations

from collections.abc import Iterable

MAX_ID_BYTES = 256
MAX_PARENTS = 64
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
    """
    value = value.strip()
    if not value:
        raise InvalidIdError(field, "is empty")
    if len(value) > MAX_ID_BYTES:
        raise InvalidIdError(field, f"has {len(value)} characters")
    if not (value.isascii() and value.isprintable()):
        raise InvalidIdError(field, "holds a character outside printable ASCII")
    return value


def format_parents(parent_ids: Iterable[str]) -> str:
    """List the calls a call depends on, for the Parent-IDs header; `-` says that it has none."""
    return ",".join(list(parent_ids)[:MAX_PARENTS]) or ROOT


def parse_parents(value: str | None, field: str) -> tuple[str, ...] | None:
    """Read a Parent-IDs header: None when absent (unknown), empty for a known root.

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
