"""The headers by which a client gives hints: one table, which the OpenAPI document describes too.

A row names a field of `core.hints.Hints`. With a field there, a header in `autellix_wire` and a row here, a
new hint comes as far as the engine's machine. What other tools call the same is in `hint_dialects`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from autellix_backend.core.hints import NO_HINTS, Hints
from autellix_backend.core.priority import Priority
from autellix_backend.identity.aliases import Fields
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.hint_dialects import HINT_FIELDS, HINT_HEADER_KEYS, read_dialects
from autellix_backend.raw_json import RawObjects
from autellix_wire.headers import EXPECTED_CALLS, EXPECTED_RETURN, EXPECTED_TOKENS, GROUP, PRIORITY, RETAIN
from autellix_wire.ids import MAX_ID_BYTES, check_id
from autellix_wire.priorities import PRIORITIES

MAX_EXPECTED_DIGITS = 12
SECONDS = r"[0-9]{1,9}(\.[0-9]{1,9})?"
"""The form of a time."""


class HintHeader(NamedTuple):
    """A header that gives a hint."""

    field: str
    """The field of `Hints` that it fills."""
    header: str
    description: str
    read: Callable[[str, str], Any]
    """Returns the value of a header's text, given its name; raises InvalidIdError or InvalidIdentityError."""
    schema: dict[str, Any]
    """The JSON schema of its text."""

    @property
    def key(self) -> str:
        """The header in lower case."""
        return self.header.lower()


def read_priority(text: str, header: str) -> Priority:
    """Read the name of a priority."""
    name = text.strip().lower()
    if name not in PRIORITIES:
        problem = f"{header} is {text[:64]!r}; expected one of {', '.join(PRIORITIES)}"
        raise InvalidIdentityError(problem, header)
    return Priority(name)


def read_count(text: str, header: str) -> float:
    """Read a whole number above zero."""
    count = text.strip()
    if not (count.isascii() and count.isdecimal() and 0 < len(count) <= MAX_EXPECTED_DIGITS and int(count)):
        raise InvalidIdentityError(f"{header} is {text!r}; expected a whole number above zero", header)
    return float(count)


def read_seconds(text: str, header: str) -> float:
    """Read a time (s)."""
    if not re.fullmatch(SECONDS, text.strip()):
        problem = f"{header} is {text[:64]!r}; expected seconds, such as 90 or 2.5"
        raise InvalidIdentityError(problem, header)
    return float(text)


_TEXT: dict[str, Any] = {"type": "string"}
ID_SCHEMA = {**_TEXT, "minLength": 1, "maxLength": MAX_ID_BYTES, "pattern": "^[!-~]([ -~]*[!-~])?$"}
_COUNT = {**_TEXT, "pattern": "^0{0,3}[1-9][0-9]{0,8}$"}
_SECONDS = {**_TEXT, "pattern": f"^{SECONDS}$"}

HINT_HEADERS: tuple[HintHeader, ...] = (
    HintHeader(
        "group", GROUP, "The programs of the same task, such as rollouts of one prompt", check_id, ID_SCHEMA
    ),
    HintHeader(
        "priority",
        PRIORITY,
        "How urgent the program is to its tenant",
        read_priority,
        {**_TEXT, "enum": list(PRIORITIES)},
    ),
    HintHeader(
        "expected_calls",
        EXPECTED_CALLS,
        "Calls that the program is expected to make from here on",
        read_count,
        _COUNT,
    ),
    HintHeader(
        "expected_tokens", EXPECTED_TOKENS, "Tokens that it is expected to generate", read_count, _COUNT
    ),
    HintHeader(
        "return_s",
        EXPECTED_RETURN,
        "Seconds from the end of this call to the program's next one",
        read_seconds,
        _SECONDS,
    ),
    HintHeader(
        "retain_s",
        RETAIN,
        "The longest time in seconds for which the context should be kept after this call",
        read_seconds,
        _SECONDS,
    ),
)
_KEYS = frozenset(row.key for row in HINT_HEADERS) | HINT_HEADER_KEYS


class StatedHints(msgspec.Struct, frozen=True):
    """The hints of a request, and where it states them."""

    record: Hints = NO_HINTS
    sources: tuple[tuple[str, str], ...] = ()
    """Fields of the record with the header, or the path in the body, that states them."""
    malformed: tuple[str, ...] = ()
    """Headers and paths of other tools whose values mean nothing."""


NOTHING_STATED = StatedHints()


def read_hints(headers: Mapping[str, str], fields: Fields, objects: RawObjects | None = None) -> StatedHints:
    """Return the hints of a request; `headers` has lower-case names, `fields` is its body.

    Raises:
        InvalidIdError: if an id is malformed.
        InvalidIdentityError: if another value is; `field` names its header or its path.
    """
    # Most requests state nothing.
    if _KEYS.isdisjoint(headers) and HINT_FIELDS.isdisjoint(fields):
        return NOTHING_STATED
    others = read_dialects(headers, fields, objects or RawObjects(fields))
    given: dict[str, tuple[Any, str]] = others.given
    for row in HINT_HEADERS:
        if (text := headers.get(row.key)) is not None:
            given[row.field] = (row.read(text, row.header), row.header)
    if not given:
        return StatedHints(malformed=others.malformed) if others.malformed else NOTHING_STATED
    record = Hints(**{field: value for field, (value, _) in given.items()})
    return StatedHints(
        record=NO_HINTS if record == NO_HINTS else record,
        sources=tuple((field, source) for field, (_, source) in given.items()),
        malformed=others.malformed,
    )
