"""Raw JSON of clients, read within bounds: what takes long to decode is counted first, at a scan's cost.

Decoding a body of 60 MB of empty lists takes ten seconds and 2 GB, in which no other call advances; skipping
it takes a tenth of a second. So the gateway decodes only small values, and lists and objects of few items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

JSON_ERRORS = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding raises: malformed JSON, or a value of the wrong type; text or numbers that Python refuses
(UTF-8, digits); and lists in lists beyond the depth that Python allows."""
MAX_SCALAR_BYTES = 64 * 1024
"""A longer value is no id, number or name."""
MAX_ITEMS = 200_000
"""The most items of a list or object that is split; that many take 50 ms."""
MAX_READ_BYTES = 2 * 2**20
MAX_OBJECTS = 20_000
"""Longer lists of messages or tools, and those of more objects, are not read: they would delay others."""
_BLANKS = b" \t\r\n"
_SEEN_BYTES = 64
_MARKS = b":,{["
MAX_MARKS = 400_000
"""The most values of a body outside of its texts; they take 4 ms to skip."""
_IN_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_TEXT_END = re.compile(_IN_TEXT + b'"', re.DOTALL)
_TEXT = re.compile(b'"' + _IN_TEXT + b'"|(")' + _IN_TEXT + rb"\\?\Z", re.DOTALL)
"""A text, or the beginning of one that does not end; its quote is the group."""

T = TypeVar("T")

_any_decoder = msgspec.json.Decoder()
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text_decoder = msgspec.json.Decoder(str)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def count_marks(part: bytes) -> int:
    """Return the marks in a part of a body; at least as many as values begin there, whatever it holds."""
    # One pass; counting each mark would take as long as decoding.
    return len(part) - len(part.translate(None, _MARKS))


class ValueMarks:
    """Counts the marks of a body outside of its texts, part by part; takes several times as long."""

    def __init__(self) -> None:
        self._is_in_text = False
        self._kept = b""
        """A backslash at the end of the part before: the byte behind it ends no text."""

    def count(self, part: bytes) -> int:
        """Return the marks in the next part."""
        part, self._kept = self._kept + part, b""
        if self._is_in_text:
            end = _TEXT_END.match(part)
            if end is None:
                self._keep_backslash(part)
                return 0
            part = part[end.end() :]
        outside = _TEXT.sub(rb"\1", part)
        self._is_in_text = outside.endswith(b'"')
        if self._is_in_text:
            self._keep_backslash(part)
        return count_marks(outside)

    def _keep_backslash(self, text: bytes) -> None:
        if (len(text) - len(text.rstrip(b"\\"))) % 2:
            self._kept = b"\\"


def scalar(raw: msgspec.Raw | None) -> object:
    """Return a small decoded value; None for one that is absent, large or malformed."""
    return decoded_or(None, _any_decoder, raw, MAX_SCALAR_BYTES)


def decoded_or(default: T, decoder: msgspec.json.Decoder[T], raw: msgspec.Raw | None, max_bytes: int) -> T:
    """Return a decoded value, or `default` for one that is absent, malformed or longer than `max_bytes`."""
    if raw is None or memoryview(raw).nbytes > max_bytes:
        return default
    try:
        return decoder.decode(raw)
    except JSON_ERRORS:
        return default


def is_object(text: bytes) -> bool:
    """Return whether a text is a JSON object; of a long one only the two ends are looked at."""
    ends = text.strip(_BLANKS)
    if not (ends.startswith(b"{") and ends.endswith(b"}")):
        return False
    if len(ends) > MAX_READ_BYTES:
        return True
    try:
        _fields_decoder.decode(ends)
    except JSON_ERRORS:
        return _is_pythons(ends)
    return True


def _is_pythons(text: bytes) -> bool:
    """Return whether Python's parser takes a text: NaN, and half a surrogate pair, as some servers send."""
    try:
        json.loads(text)
    except JSON_ERRORS:
        return False
    return True


def whole_number(raw: msgspec.Raw | None) -> int | None:
    """Return a whole number as engines read it, `"16"` and `16.0` included; None for anything else."""
    value = scalar(raw)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def first_byte(raw: msgspec.Raw) -> bytes:
    """Return the first byte of a value, which says what it is."""
    return memoryview(raw)[:1].tobytes()


def first_item_byte(raw: msgspec.Raw) -> bytes:
    """Return the first byte of a list's first item; `]` for an empty list, empty for anything but a list."""
    if first_byte(raw) != b"[":
        return b""
    text = memoryview(raw)
    # No encoder writes more blanks; a client that does evades no limit.
    return text[1:_SEEN_BYTES].tobytes().lstrip(_BLANKS)[:1] or text[1:].tobytes().lstrip(_BLANKS)[:1]


def may_have_more(raw: bytes | msgspec.Raw, mark: bytes, limit: int = MAX_ITEMS) -> bool:
    """Return whether a mark occurs more often than `limit`: there are at most as many items as marks."""
    return bytes(raw).count(mark) > limit


def has_many_objects(raw: msgspec.Raw) -> bool:
    """Return whether a list holds too many objects, or is too long, to be read."""
    return memoryview(raw).nbytes > MAX_READ_BYTES or may_have_more(raw, b"{", MAX_OBJECTS)


class RawObjects:
    """The objects inside a JSON object that is split at its top level, each decoded once."""

    def __init__(self, fields: Mapping[str, msgspec.Raw]) -> None:
        self._objects: dict[tuple[str, ...], Mapping[str, msgspec.Raw] | None] = {(): fields}

    def at(self, path: tuple[str, ...]) -> Mapping[str, msgspec.Raw] | None:
        """Return the object at a path, empty if nothing is there; None for anything else."""
        if path in self._objects:
            return self._objects[path]
        holder = self.at(path[:-1])
        raw = None if holder is None else holder.get(path[-1])
        found: Mapping[str, msgspec.Raw] | None = {}
        if raw is not None and bytes(memoryview(raw)[:5]) != b"null":
            if first_byte(raw) == b'"':
                # vLLM's own type of `vllm_xargs` has no objects, so clients send theirs as a text of JSON.
                text = decoded_or("", _text_decoder, raw, MAX_SCALAR_BYTES)
                raw = msgspec.Raw(text.encode(errors="replace"))
            found = _object_or_none(raw)
        self._objects[path] = found
        return found


def _object_or_none(raw: msgspec.Raw) -> Mapping[str, msgspec.Raw] | None:
    """Return a small object split at its top level; None for anything else."""
    if memoryview(raw).nbytes > MAX_SCALAR_BYTES:
        return None
    try:
        return _fields_decoder.decode(raw)
    except JSON_ERRORS:
        return None


def items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the items of a list whose number is known to be bounded."""
    return _items_decoder.decode(raw)
