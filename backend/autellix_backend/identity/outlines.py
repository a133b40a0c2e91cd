"""Outlines of requests: digests of the elements of a prompt, and where two of them part.

An outline holds no text: of each tool, of the system prompt and of each message it has keyed digests, with
the JSON paths of their parts. The digests are Python's hashes of bytes, whose key is this process's. So the
gateway can say that a request differs from the one before in `tools[3].function.description`, and no more.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from sys import intern
from typing import NamedTuple

import msgspec

from autellix_backend.identity.billing_line import without_billing_line
from autellix_backend.raw_json import MAX_READ_BYTES, decoded_or, first_byte, has_many_objects, scalar

MESSAGE_DEPTH = 4
TOOL_DEPTH = 2
"""Parts of a message or of a tool below this depth count as one."""
MAX_PARTS = 16
"""The most parts of one element; what is behind them is known by the element's digest alone."""
FIRST_MESSAGES = 4
"""The messages whose parts are known: clients change these most, and the parts of all would cost too much."""
MAX_MESSAGES = 4096
MAX_TOOLS = 256
"""More tools than these are known by the digest of all alone."""
BOUNDARIES = 8
"""The ends of messages, the last ones, by which a longer transcript is recognised."""
BOUNDARY_BYTES = 256
OWN_SIZE = 64
"""Of an outline without tools, system prompt and messages: for ends of messages, and parts of the first."""
MAX_PATH = 128
"""Characters of a path, whose names are the client's."""

_MESSAGES = ("messages", "input")
_SYSTEM = ("system", "instructions")
_SYSTEM_ROLES = ("system", "developer")
_DIGITS = b"0123456789"
_CACHE_CONTROL = re.compile(rb'(,\s*)?"cache_control"\s*:\s*(?:\{[^{}]*\}|null)(?(1)|\s*,?)')
_BLANKS = b" \t\r\n"
_GAP = _BLANKS + b","
_NO_FIELDS: dict[str, msgspec.Raw] = {}
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Kind(enum.StrEnum):
    """Why a prompt's beginning was not found in the prefix cache."""

    TOOLS = "tools"
    TOOL_ORDER = "tool_order"
    SYSTEM = "system"
    TIMESTAMP = "timestamp"
    """Only digits differ, such as those of a time."""
    CACHE_CONTROL = "cache_control"
    """Only marks of Anthropic's cache have moved."""
    MESSAGE = "message"
    """An earlier message differs."""
    COMPACTION = "compaction"
    """The transcript is shorter, or its beginning has been replaced."""
    SUB_AGENT = "sub_agent"
    """It is another conversation of the program."""
    MODEL = "model"
    """Another model or adapter."""
    MOVED = "moved"
    """Another engine."""
    MADE_WAY = "made_way"
    """Its program waited for KV memory, and its context made way."""
    EVICTED = "evicted"
    """Calls of other programs needed the memory."""


CLIENTS = frozenset(
    {Kind.TOOLS, Kind.TOOL_ORDER, Kind.SYSTEM, Kind.TIMESTAMP, Kind.CACHE_CONTROL, Kind.MESSAGE}
)
"""Those that a client could avoid."""


class Break(NamedTuple):
    """Where a request leaves the beginning of another one."""

    kind: Kind
    path: str = ""


class _PartDigest(NamedTuple):
    path: str
    digest: int
    masked: int
    """The digest without digits."""


class _Element(NamedTuple):
    """A tool, a system prompt or a message."""

    digest: int
    """Without the marks of a cache."""
    marked: int
    """With them."""
    parts: tuple[_PartDigest, ...]


class _Boundary(NamedTuple):
    end: int
    """Where a message ends in the list's text."""
    digest: int
    """Of the bytes before."""
    message_count: int
    """The messages up to here."""


class Outline:
    """The elements of one request, to which the messages of the next ones are added."""

    def __init__(self, fields: Mapping[str, msgspec.Raw], transcript: msgspec.Raw) -> None:
        """Outline a request whose transcript `transcript_of` has returned."""
        self.head_bytes = head_bytes(fields)
        self._tools = _tools(fields.get("tools"))
        self._system_path = next((name for name in _SYSTEM if name in fields), "")
        self._system = [_element(fields[self._system_path], TOOL_DEPTH)] if self._system_path else []
        self._head_size = sum(1 + 2 * len(each.parts) for each in (*self._tools, *self._system))
        self._messages: list[_Element] = []
        self._boundaries: list[_Boundary] = []
        items = _list(transcript)
        self._system_count = next(
            (place for place, raw in enumerate(items) if _role(raw) not in _SYSTEM_ROLES), len(items)
        )
        self._add(transcript, items, 1)

    @property
    def size(self) -> int:
        """What it takes of memory, in digests of about 150 bytes."""
        return OWN_SIZE + self._head_size + len(self._messages)

    def follow(self, transcript: msgspec.Raw) -> bool:
        """Add the messages of a transcript that goes on from this one's; return False if it does not seem to.

        Only the ends of the last messages are compared: whether all before was found, the engine has said.
        """
        text = memoryview(transcript)
        for end, digest, count in reversed(self._boundaries):
            if end < len(text) and hash(bytes(text[max(0, end - BOUNDARY_BYTES) : end])) == digest:
                rest = bytes(text[end:]).lstrip(_BLANKS)
                if rest[:1] not in (b",", b"]"):
                    continue
                del self._messages[count:]
                self._add(transcript, _list(msgspec.Raw(b"[" + rest.lstrip(_GAP))), end)
                return True
        return False

    def first_break(self, new: Outline) -> Break | None:
        """Return where a request leaves this one's beginning, by the order of the prompt; None nowhere."""
        system = _first_break(self._system, new._system, new._system_path, Kind.SYSTEM, 1)
        message = self._message_break(new)
        start = max(self._system_count, new._system_count)
        systems = self._messages[: self._system_count], new._messages[: new._system_count]
        is_other_system = system is not None or systems[0] != systems[1]
        is_stamped = Kind.TIMESTAMP in (system and system.kind, message and message.kind)
        if is_other_system and self._digest_at(start) != new._digest_at(start) and not is_stamped:
            return Break(Kind.SUB_AGENT)
        found = [each for each in (self._tools_break(new), system, message) if each is not None]
        # A mark that has moved matters only if nothing else has.
        return next((each for each in found if each.kind is not Kind.CACHE_CONTROL), next(iter(found), None))

    def _digest_at(self, place: int) -> int:
        return self._messages[place].digest if place < len(self._messages) else 0

    def _tools_break(self, new: Outline) -> Break | None:
        found = _first_break(self._tools, new._tools, "tools[{}]", Kind.TOOLS)
        if found is None or found.kind is not Kind.TOOLS:
            return found
        same = sorted(each.digest for each in self._tools) == sorted(each.digest for each in new._tools)
        return Break(Kind.TOOL_ORDER, found.path.partition("]")[0] + "]") if same else found

    def _message_break(self, new: Outline) -> Break | None:
        count = len(self._messages)
        found = _first_break(
            self._messages, new._messages[:count], "messages[{}]", Kind.MESSAGE, self._system_count + 1
        )
        if found is None or found.kind is not Kind.MESSAGE:
            return found
        place = int(found.path[len("messages[") :].partition("]")[0])
        if place < min(self._system_count, new._system_count):
            return found._replace(kind=Kind.SYSTEM)
        return found._replace(kind=Kind.COMPACTION) if len(new._messages) < count else found

    def _add(self, transcript: msgspec.Raw, items: Sequence[msgspec.Raw], start: int) -> None:
        """Add the items of a transcript that begin at, or behind a comma at, an index of its text."""
        text, at, known = memoryview(transcript), start, len(self._messages)
        self._boundaries = [each for each in self._boundaries if each.message_count <= known]
        items = items[: MAX_MESSAGES - known]
        for place, raw in enumerate(items):
            while text[at] in _GAP:
                at += 1
            at += memoryview(raw).nbytes
            self._messages.append(_element(raw, MESSAGE_DEPTH if known + place < FIRST_MESSAGES else None))
            if len(items) - place <= BOUNDARIES:
                digest = hash(bytes(text[max(0, at - BOUNDARY_BYTES) : at]))
                self._boundaries.append(_Boundary(at, digest, len(self._messages)))
        del self._boundaries[:-BOUNDARIES]


def transcript_of(fields: Mapping[str, msgspec.Raw]) -> msgspec.Raw | None:
    """Return the messages of a request, None for one without, or of which it is too long."""
    raw = next((fields[name] for name in _MESSAGES if name in fields), None)
    if raw is None or first_byte(raw) != b"[":
        return None
    return raw if memoryview(raw).nbytes + head_bytes(fields) <= MAX_READ_BYTES else None


def head_bytes(fields: Mapping[str, msgspec.Raw]) -> int:
    """Return the length of what comes before the messages; one that differs is another head."""
    return sum(memoryview(fields[name]).nbytes for name in ("tools", *_SYSTEM) if name in fields)


def _first_break(
    old: Sequence[_Element], new: Sequence[_Element], form: str, kind: Kind, stamped: int = 0
) -> Break | None:
    """Return where elements first differ; in the first `stamped` ones, digits may be those of a time."""
    mark: Break | None = None
    for place, (a, b) in enumerate(zip_longest(old, new)):
        path = form.format(place)
        if a is None or b is None:
            return Break(kind, path)
        if a.digest == b.digest:
            if mark is None and a.marked != b.marked:
                mark = Break(Kind.CACHE_CONTROL, path + ".cache_control")
            continue
        masked = [(part.path, part.masked) for part in a.parts]
        is_time = place < stamped and masked == [(part.path, part.masked) for part in b.parts]
        pairs = zip_longest(a.parts, b.parts)
        where = next(((part or other) for part, other in pairs if part != other), None)
        return Break(Kind.TIMESTAMP if is_time else kind, path + (where.path if where else ""))
    return mark


def _tools(raw: msgspec.Raw | None) -> list[_Element]:
    items = _list(raw)
    if raw is not None and len(items) > MAX_TOOLS:
        return [_element(raw, None)]
    return [_element(item, TOOL_DEPTH) for item in items]


def _element(raw: msgspec.Raw, depth: int | None) -> _Element:
    """Return the digests of an element, with those of its parts down to a depth; None for no parts."""
    text = bytes(raw)
    if depth is not None:
        text = without_billing_line(text)
    bare = _CACHE_CONTROL.sub(b"", text) if b'"cache_control"' in text else text
    digest = hash(bare)
    marked = digest if bare is text else hash(text)
    if depth is None:
        return _Element(digest, marked, ())
    return _Element(digest, marked, tuple(islice(_parts(msgspec.Raw(bare), "", depth), MAX_PARTS)))


def _parts(raw: msgspec.Raw, path: str, depth: int) -> Iterator[_PartDigest]:
    begin = first_byte(raw)
    if depth and begin == b"{":
        for name, value in decoded_or(_NO_FIELDS, _objects, raw, MAX_READ_BYTES).items():
            yield from _parts(value, f"{path}.{name}", depth - 1)
    elif depth and begin == b"[":
        for place, item in enumerate(_list(raw)[:MAX_PARTS]):
            yield from _parts(item, f"{path}[{place}]", depth - 1)
    else:
        text = bytes(raw)
        yield _PartDigest(intern(path[:MAX_PATH]), hash(text), hash(text.translate(None, _DIGITS)))


def _list(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    """Return the items of a list; none if it is absent, malformed, or of too many objects."""
    return [] if raw is None or has_many_objects(raw) else decoded_or([], _items, raw, MAX_READ_BYTES)


def _role(raw: msgspec.Raw) -> object:
    return scalar(decoded_or(_NO_FIELDS, _objects, raw, MAX_READ_BYTES).get("role"))
