"""Hints in the words of other tools: one table, from their fields and headers to those of `core.hints.Hints`.

The first row that states something wins, hint by hint; our own headers (`hints`) go before all rows.
`docs/reference/wire.md` has the same table; `tests/vectors/hints.json` has inputs and what they make.

What its own contract calls an error is one here too, where the row is strict: vLLM's router and Dynamo refuse
such a request. Anything else that means nothing is ignored, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from autellix_backend.core.priority import Priority
from autellix_backend.identity.aliases import Fields
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.raw_json import RawObjects, scalar

LONGEST_S = 1e9
"""Longer times mean no more."""
LONGEST_TTL_S = 3600.0
"""The longest of an `agent_hint`."""
MAX_PROBLEM = 128
"""Characters of an error's reason, which may cite a value of another tool."""
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class DialectHint:
    """A field of a body, or a header, that gives a hint."""

    field: str
    """The field of `Hints` that it fills."""
    source: str
    """The dotted path in the body, or the header: its name for clients and in metrics."""
    read: Callable[[Any], Any]
    """Returns the hint of a decoded value, None if it states nothing; raises ValueError if malformed."""
    is_header: bool = False
    is_strict: bool = False
    """Whether its contract calls a malformed value an error."""

    @property
    def path(self) -> tuple[str, ...]:
        """The names on the path into the body; empty for a header."""
        return () if self.is_header else tuple(self.source.split("."))


class DialectHints(msgspec.Struct, frozen=True):
    """What the rows of the table state."""

    given: dict[str, tuple[Any, str]] = {}
    """Values and their sources, by the field of `Hints`."""
    malformed: tuple[str, ...] = ()
    """Sources of values that mean nothing, which were ignored."""


class _NoObjectError(ValueError):
    """A value at a place where an object should be."""

    def __init__(self, place: str) -> None:
        super().__init__("expected an object")
        self.place = place


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected a whole number")
    return value


def _higher_first(value: Any) -> Priority:
    """Read a number of which the larger goes first, zero being the default."""
    rank = _whole(value)
    return Priority.DEFAULT if rank == 0 else Priority.INTERACTIVE if rank > 0 else Priority.BATCH


def _lower_first(value: Any) -> Priority:
    return _higher_first(-_whole(value))


def _stratum(value: Any) -> Priority | None:
    """Read a rank that goes before all lower ones; zero states nothing."""
    rank = _whole(value)
    if rank < 0:
        raise ValueError("expected zero or more")
    return Priority.INTERACTIVE if rank else None


def _of_header(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_text(text: str) -> Any:
        if len(text) > _MAX_DIGITS:
            raise ValueError("expected a number")
        return read(int(text))

    return read_text


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError("expected seconds, zero or more")
    return float(min(value, LONGEST_S))


def _ttl(value: Any) -> float:
    """Read the TTL of an `agent_hint`."""
    if _seconds(value) > LONGEST_TTL_S:
        raise ValueError(f"expected {LONGEST_TTL_S:g} seconds at most")
    return float(value)


_TIERS = {
    "priority": Priority.INTERACTIVE,
    "flex": Priority.BATCH,
    **dict.fromkeys(("auto", "default", "scale", "standard_only"), Priority.DEFAULT),
}
"""Priorities by the names of OpenAI and Anthropic, most of which say nothing about urgency."""


def _tier(value: Any) -> Priority:
    if not isinstance(value, str) or value not in _TIERS:
        raise ValueError("expected a service tier")
    return _TIERS[value]


_CONTEXT, _HINT, _NVEXT = "vllm_xargs.agentic_context", "agent_hint.cache_control", "nvext.agent_hints"

DIALECT_HINTS: tuple[DialectHint, ...] = (
    # vLLM's router
    DialectHint("priority", f"{_CONTEXT}.priority", _higher_first, is_strict=True),
    DialectHint("retain_s", f"{_CONTEXT}.kv_retention_ttl", _seconds, is_strict=True),
    DialectHint("retain_s", f"{_CONTEXT}.kv_retention_ttl_seconds", _seconds, is_strict=True),
    # vLLM's RFC of hints to the KV cache
    DialectHint("retain_s", f"{_HINT}.ttl", _ttl, is_strict=True),
    # NVIDIA Dynamo, which reads the headers before the body
    DialectHint("priority", "X-Dynamo-Request-Strict-Priority", _of_header(_stratum), is_header=True),
    DialectHint("priority", "X-Dynamo-Request-Priority", _of_header(_higher_first), is_header=True),
    DialectHint("priority", f"{_NVEXT}.strict_priority", _stratum, is_strict=True),
    DialectHint("priority", f"{_NVEXT}.priority", _higher_first, is_strict=True),
    # OpenAI, and vLLM's own field
    DialectHint("priority", "service_tier", _tier),
    DialectHint("priority", "priority", _lower_first),
)
HINT_HEADER_KEYS = frozenset(row.source.lower() for row in DIALECT_HINTS if row.is_header)
HINT_FIELDS = frozenset(row.path[0] for row in DIALECT_HINTS if row.path)
"""The names of the body's fields that may hold hints."""

_BY_HEADER = tuple(
    (place, row.source.lower(), row) for place, row in enumerate(DIALECT_HINTS) if row.is_header
)
_BY_FIELD = {
    name: tuple(
        (place, row.path[:-1], row.path[-1], row)
        for place, row in enumerate(DIALECT_HINTS)
        if row.path[:1] == (name,)
    )
    for name in HINT_FIELDS
}
"""Rows with their places in the table; most requests have one of the fields, or none."""


def read_dialects(headers: Mapping[str, str], fields: Fields, objects: RawObjects) -> DialectHints:
    """Return what a request states in the words of other tools; `headers` has lower-case names.

    Raises:
        InvalidIdentityError: if a value is malformed by the contract of its sender; `field` names it.
    """
    stated: list[tuple[int, str, str, Any]] = []
    malformed: list[str] = []
    rows: list[tuple[int, tuple[str, ...], str, DialectHint]]
    rows = [(place, (), key, row) for place, key, row in _BY_HEADER if key in headers]
    for name in HINT_FIELDS & fields.keys():
        rows += _BY_FIELD[name]
    for place, holder, key, row in rows:
        try:
            value = headers[key] if row.is_header else _value_at(holder, key, objects)
            hint = None if value is None else row.read(value)
        except ValueError as error:
            if row.is_strict:
                at = error.place if isinstance(error, _NoObjectError) else row.source
                raise InvalidIdentityError(f"{at}: {str(error)[:MAX_PROBLEM]}", at) from error
            malformed.append(row.source)
            continue
        if hint is not None:
            stated.append((place, row.field, row.source, hint))
    stated.sort(key=lambda each: each[0])
    given: dict[str, tuple[Any, str]] = {}
    for _, field, source, hint in stated:
        given.setdefault(field, (hint, source))
    return DialectHints(given, tuple(malformed))


def _value_at(holder: tuple[str, ...], key: str, objects: RawObjects) -> Any:
    """Return a decoded value, None without one.

    Raises:
        ValueError: if it, or what should hold it, is malformed.
    """
    found = objects.at(holder)
    if found is None:
        raise _NoObjectError(".".join(holder))
    raw = found.get(key)
    if raw is None or bytes(memoryview(raw)[:5]) == b"null":
        return None
    value = scalar(raw)
    if value is None:
        raise ValueError("expected a number")
    return value
