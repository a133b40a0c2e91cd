"""Where a request leaves the beginning of an earlier one: a kind and a JSON path, never text.

Two bodies are compared element by element, in the order of a prompt: tools, system prompt, messages. What is
known to be harmless at most servers (marks of a cache that roll on, Claude Code's billing line) is the reason
only if nothing else differs.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import msgspec

from autellix_backend.identity.billing_line import without_billing_line
from autellix_backend.raw_json import (
    MAX_READ_BYTES,
    decoded_or,
    first_byte,
    has_many_objects,
    may_have_more,
    scalar,
)

MAX_DEPTH = 4
"""The names and indices of a path below its element: enough for the text of a block in a tool's result."""
MAX_PATH = 128
"""Characters of a path, whose names are the client's."""

MAX_TIMED_BYTES = 256 * 1024
"""Longer elements are not searched for times: that takes 10 ms."""
MAX_ITEMS = 4096
"""Elements of a list that are compared; those behind count as equal."""
MAX_COMMAS = 50_000
"""A list or object of more is not split: that would take long, and no prompt of 2 MiB has them."""

Fields: TypeAlias = Mapping[str, msgspec.Raw]
_MESSAGES = ("messages", "input")
_SYSTEM = ("system", "instructions")
_SYSTEM_ROLES = ("system", "developer")
_MARK = re.compile(rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
_COMMA = re.compile(rb"\s*,")
_BLANKS = b" \t\r\n"
_TIME = re.compile(
    rb"\d+|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|[AP]M|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_NO_FIELDS: dict[str, msgspec.Raw] = {}
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Kind(enum.StrEnum):
    """Why a prompt's beginning was not found in the prefix cache."""

    TOOLS = "tools"
    TOOL_ORDER = "tool_order"
    SYSTEM = "system"
    TIMESTAMP = "timestamp"
    """Only numbers and names of days and months differ, in the system prompt or the first message."""
    BILLING_LINE = "billing_line"
    """Only Claude Code's billing line differs."""
    CACHE_CONTROL = "cache_control"
    """Only marks of Anthropic's cache have moved."""
    LATE_SYSTEM = "late_system"
    """Only a system message has come amid the transcript, which some servers put in front."""
    MESSAGE = "message"
    """An earlier message differs."""
    COMPACTION = "compaction"
    """The transcript is shorter, or messages are left out."""
    SUB_AGENT = "sub_agent"
    """It is another conversation of the program."""
    MODEL = "model"
    """Another model or adapter."""
    MOVED = "moved"
    """Another engine."""
    MADE_WAY = "made_way"
    """Its program waited for KV memory, and its context made way."""
    EVICTED = "evicted"
    """The engine no longer had it."""
    UNEXAMINED = "unexamined"
    """It was one of too many to compare them all."""


class Break(NamedTuple):
    """Where a request leaves the beginning of another one."""

    kind: Kind
    path: str = ""


class _Element(NamedTuple):
    """A tool, a system prompt or a message."""

    path: str
    text: bytes


class _Difference(NamedTuple):
    place: int
    kind: Kind
    path: str


class _Prompt:
    """The elements of a request."""

    def __init__(self, fields: Fields) -> None:
        tools = fields.get("tools")
        # What cannot be split is compared as a whole.
        self.tools = _elements("tools", tools) or ([] if tools is None else [_Element("tools", bytes(tools))])
        self.system = [_Element(name, bytes(fields[name])) for name in _SYSTEM if name in fields]
        name = next((name for name in _MESSAGES if name in fields), "")
        messages = _elements(name, fields.get(name))
        count = next((at for at, each in enumerate(messages) if not _is_system(each)), len(messages))
        self.system += messages[:count]
        self.turns = messages[count:]

    def is_elsewhere(self, new: _Prompt, *, is_other_head: bool) -> bool:
        """Return whether a request that begins otherwise is of another conversation.

        It has no message of this one; behind the same tools and system prompt it also has no answer yet, and
        is no shorter, as a compacted transcript would be.
        """
        turns = {_unmarked(each.text) for each in self.turns}
        if not turns.isdisjoint(_unmarked(each.text) for each in new.turns):
            return False
        is_first = len(new.turns) >= len(self.turns) and all(_role(each) == "user" for each in new.turns)
        return is_other_head or is_first


def has_transcript(fields: Fields, size_bytes: int) -> bool:
    """Return whether a body has a list of messages, and is short enough to be compared."""
    raw = fields.get("messages") or fields.get("input")
    return raw is not None and size_bytes <= MAX_READ_BYTES and first_byte(raw) == b"["


def transcript(fields: Fields) -> bytes:
    """Return the list of messages of a prompt's fields as JSON."""
    return bytes(next(fields[name] for name in _MESSAGES if name in fields))


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items agree from the start; halves the range, since comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def first_break(before: Fields, now: Fields) -> Break | None:
    """Return where a request leaves the beginning of the one before it; None if it goes on from that."""
    if _goes_on(before, now):
        return None
    old, new = _Prompt(before), _Prompt(now)
    tools = _tools_difference(old.tools, new.tools)
    system = _difference(old.system, new.system, Kind.SYSTEM, stamped=len(old.system))
    message = _message_difference(old.turns, new.turns)
    found = [each for each in (tools, system, message) if each is not None]
    hard = [each for each in found if each.kind not in (Kind.CACHE_CONTROL, Kind.BILLING_LINE)]
    is_stamped = any(each.kind is Kind.TIMESTAMP for each in hard)
    is_other_head = any(each in hard and each.kind is not Kind.TOOL_ORDER for each in (tools, system))
    if message in hard and not is_stamped and old.is_elsewhere(new, is_other_head=is_other_head):
        return Break(Kind.SUB_AGENT)
    if hard:
        return Break(hard[0].kind, hard[0].path[:MAX_PATH])
    late = next((each.path for each in new.turns[len(old.turns) :] if _is_system(each)), None)
    if late is not None:
        return Break(Kind.LATE_SYSTEM, late)
    soft = sorted(found, key=lambda each: each.kind is not Kind.BILLING_LINE)
    return Break(soft[0].kind, soft[0].path[:MAX_PATH]) if soft else None


def _goes_on(before: Fields, now: Fields) -> bool:
    """Return whether a request only adds messages, none of the system, without a look at each message."""
    if any(bytes(before.get(name, b"")) != bytes(now.get(name, b"")) for name in ("tools", *_SYSTEM)):
        return False
    old, new = transcript(before), transcript(now)
    added = new[len(old) - 1 :]
    return new.startswith(old[:-1]) and b'"system"' not in added and b'"developer"' not in added


def _tools_difference(old: list[_Element], new: list[_Element]) -> _Difference | None:
    found = _difference(old, new, Kind.TOOLS)
    if found is None or found.kind is not Kind.TOOLS:
        return found
    is_same = sorted(_unmarked(each.text) for each in old) == sorted(_unmarked(each.text) for each in new)
    return found._replace(kind=Kind.TOOL_ORDER, path=old[found.place].path) if is_same else found


def _message_difference(old: list[_Element], new: list[_Element]) -> _Difference | None:
    # Without any, the transcript is too long to be split.
    found = _difference(old, new[: len(old)], Kind.MESSAGE, stamped=1) if new else None
    if found is None or found.kind is not Kind.MESSAGE:
        return found
    left_out = {each.text for each in old[found.place + 1 :]}
    # A window over the last messages moves on: what was later is here.
    is_shorter = len(new) < len(old) or new[found.place].text in left_out
    return found._replace(kind=Kind.COMPACTION) if is_shorter else found


def _difference(
    old: Sequence[_Element], new: Sequence[_Element], kind: Kind, *, stamped: int = 0
) -> _Difference | None:
    """Return where elements first differ, harmless ones last; the first `stamped` may hold a time."""
    soft: _Difference | None = None
    for place, (a, b) in enumerate(zip_longest(old, new)):
        if a is None or b is None:
            return _Difference(place, kind, (a or b).path)
        if a.text == b.text:
            continue
        one, other = _unmarked(a.text), _unmarked(b.text)
        if one == other:
            where = _place(msgspec.Raw(a.text), msgspec.Raw(b.text), b.path, MAX_DEPTH)
            soft = soft or _Difference(place, Kind.CACHE_CONTROL, where)
            continue
        billed = msgspec.Raw(one), msgspec.Raw(other)
        one, other = without_billing_line(one), without_billing_line(other)
        if one == other:
            soft = _Difference(place, Kind.BILLING_LINE, _place(*billed, b.path, MAX_DEPTH))
            continue
        path = _place(msgspec.Raw(one), msgspec.Raw(other), b.path, MAX_DEPTH)
        is_short = place < stamped and len(one) <= MAX_TIMED_BYTES
        is_time = is_short and _TIME.sub(b"", one) == _TIME.sub(b"", other)
        return _Difference(place, Kind.TIMESTAMP if is_time else kind, path)
    return soft


def _place(old: msgspec.Raw, new: msgspec.Raw, path: str, depth: int) -> str:
    """Return the path of the first difference of two values that differ."""
    begin = first_byte(old)
    if begin == b'"' == first_byte(new):
        texts = bytes(old), bytes(new)
        line = texts[0][: common_length(*texts)].count(b"\\n") + 1
        return f"{path} line {line}" if line > 1 else path
    if not depth or begin != first_byte(new) or begin not in (b"{", b"["):
        return path
    for (name, a), (other, b) in zip_longest(_parts(old), _parts(new), fillvalue=("", None)):
        if name != other or a is None or b is None:
            return path + (other or name)
        if bytes(a) != bytes(b):
            return _place(a, b, path + name, depth - 1)
    return path


def _parts(raw: msgspec.Raw) -> list[tuple[str, msgspec.Raw]]:
    """Return what an object or a list holds, each with the end of its path."""
    if first_byte(raw) == b"[":
        return [(f"[{place}]", each) for place, each in enumerate(_list(raw))]
    fields = {} if _has_many(raw) else decoded_or(_NO_FIELDS, _objects, raw, MAX_READ_BYTES)
    return [(f".{name}", each) for name, each in fields.items()]


def _elements(name: str, raw: msgspec.Raw | None) -> list[_Element]:
    return [_Element(f"{name}[{place}]", bytes(each)) for place, each in enumerate(_list(raw))]


def _unmarked(text: bytes) -> bytes:
    """Return an element without the marks of a cache, and the comma before or behind each."""
    parts, start = [], 0
    for mark in _MARK.finditer(text):
        before = text[start : mark.start()].rstrip(_BLANKS)
        comma = None if before.endswith(b",") else _COMMA.match(text, mark.end())
        parts.append(before.removesuffix(b","))
        start = mark.end() if comma is None else comma.end()
    return b"".join([*parts, text[start:]]) if parts else text


def _list(raw: msgspec.Raw | None) -> list[msgspec.Raw]:
    """Return the items of a list; none if it is absent, malformed, or of too many values."""
    return [] if raw is None or _has_many(raw) else decoded_or([], _items, raw, MAX_READ_BYTES)[:MAX_ITEMS]


def _has_many(raw: msgspec.Raw) -> bool:
    return has_many_objects(raw) or may_have_more(raw, b",", MAX_COMMAS)


def _is_system(element: _Element) -> bool:
    return _role(element) in _SYSTEM_ROLES


def _role(element: _Element) -> object:
    fields = decoded_or(_NO_FIELDS, _objects, msgspec.Raw(element.text), MAX_READ_BYTES)
    return scalar(fields.get("role"))
