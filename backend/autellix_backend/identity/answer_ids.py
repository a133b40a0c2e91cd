"""The ids that engines give to tool calls and responses, and that clients send back with what follows.

A request that carries one continues the answer that had it, and belongs to that answer's program. Only an id
that an engine makes unique can say so: behind its last `_`, `-`, `:` or `.` it has at least eight letters and
digits, of both kinds. `call_0`, `functions.search:0` and names of tools occur in any task, and do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from autellix_backend.raw_json import MAX_READ_BYTES, decoded_or, first_byte, has_many_objects, scalar
from autellix_wire.ids import MAX_ID_BYTES

MAX_IDS = 64
"""The most ids of one answer."""
LAST_IDS = 16
"""The most ids of one transcript: if the answer that it continues is known, so are these."""

MAX_TOOLS = 8
"""Names of tools of one answer."""

_PREVIOUS = "previous_response_id"
_TRANSCRIPTS = ("messages", "input")
_UNIQUE = re.compile(r"(?:.*[_:.-])?(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[0-9A-Za-z]{8,}")


class AnswerIds(NamedTuple):
    """The unique ids in an answer."""

    response: str | None = None
    """The id of a response, which the engine may have stored."""
    tool_calls: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """The names of the tools that it calls, each once."""


class _CalledFunction(msgspec.Struct):
    name: str | None = None


class _ToolCall(msgspec.Struct):
    id: str | None = None
    function: _CalledFunction | None = None


class _ContentPart(msgspec.Struct):
    """A part of a message's content: Anthropic's tool calls and their results."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None

    @property
    def tool_call_id(self) -> str | None:
        return self.id if self.type == "tool_use" else self.tool_use_id


class _Item(msgspec.Struct):
    """A message of chats or messages, or an item of a response's input or output."""

    tool_call_id: str | None = None
    tool_calls: list[_ToolCall] | None = None
    call_id: str | None = None
    name: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")

    def ids(self) -> Iterator[str | None]:
        yield from (self.tool_call_id, self.call_id)
        yield from (call.id for call in self.tool_calls or ())
        if first_byte(self.content) == b"[":
            yield from (
                part.tool_call_id for part in decoded_or([], _parts_decoder, self.content, MAX_READ_BYTES)
            )


class _AnswerChoice(msgspec.Struct):
    message: _Item | None = None
    delta: _Item | None = None


class _AnswerFields(msgspec.Struct):
    """A whole answer, or an event of a stream, in any dialect."""

    id: str | None = None
    object: str | None = None
    choices: list[_AnswerChoice] = []
    content: list[_ContentPart] | None = None
    content_block: _ContentPart | None = None
    output: list[_Item] = []
    response: _AnswerFields | None = None

    def tool_calls(self) -> Iterator[str | None]:
        for choice in self.choices:
            for message in filter(None, (choice.message, choice.delta)):
                yield from message.ids()
        yield from (part.tool_call_id for part in self.content or ())
        yield from (item.call_id for item in self.output)
        if self.content_block is not None:
            yield self.content_block.tool_call_id

    def tools(self) -> Iterator[str | None]:
        for choice in self.choices:
            for message in filter(None, (choice.message, choice.delta)):
                yield from (call.function.name for call in message.tool_calls or () if call.function)
        yield from (item.name for item in self.output if item.call_id)
        parts = [*(self.content or ()), *filter(None, [self.content_block])]
        yield from (part.name for part in parts if part.type == "tool_use")


_parts_decoder = msgspec.json.Decoder(list[_ContentPart])
_raws_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_item_decoder = msgspec.json.Decoder(_Item)
_answer_decoder = msgspec.json.Decoder(_AnswerFields)
_NO_ITEM = _Item()
_NO_IDS = AnswerIds()


def is_unique(answer_id: str) -> bool:
    """Return whether an id is one that an engine makes once."""
    return len(answer_id) <= MAX_ID_BYTES and _UNIQUE.fullmatch(answer_id) is not None


def previous_response(fields: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the id of the response that a request continues."""
    found = scalar(fields[_PREVIOUS]) if _PREVIOUS in fields else None
    return found if isinstance(found, str) and is_unique(found) else None


def transcript_ids(fields: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    """Return the ids of tool calls in a request's transcript, the latest message's first."""
    raw = next((fields[name] for name in _TRANSCRIPTS if name in fields), None)
    if raw is None or not _returns_tools(bytes(raw)) or has_many_objects(raw):
        return ()
    # From the end, and no further than needed: a long transcript has hundreds of ids.
    items = (decoded_or(_NO_ITEM, _item_decoder, item, MAX_READ_BYTES) for item in reversed(_split(raw)))
    return _unique((found for item in items for found in item.ids()), LAST_IDS)


def _returns_tools(transcript: bytes) -> bool:
    """Return whether a transcript may hold what a tool returned; most need not be decoded."""
    return b'call_id"' in transcript or b'tool_use_id"' in transcript


def _split(raw: msgspec.Raw) -> list[msgspec.Raw]:
    return decoded_or([], _raws_decoder, raw, MAX_READ_BYTES)


def opens_tool_call(event: bytes) -> bool:
    """Return whether an event may open a tool call; those with its arguments do not name the tool."""
    return b'"name"' in event and (b'"tool_calls"' in event or b'"tool_use"' in event)


def read_answer_ids(content: bytes) -> AnswerIds:
    """Return the unique ids in a whole answer or in an event of a stream."""
    if b'"response"' not in content and not opens_tool_call(content):
        return _NO_IDS
    answer = decoded_or(_AnswerFields(), _answer_decoder, msgspec.Raw(content), MAX_READ_BYTES)
    answer = answer.response or answer
    is_response = answer.object == "response" and answer.id is not None and is_unique(answer.id)
    tools = dict.fromkeys(name for name in answer.tools() if name and len(name) <= MAX_ID_BYTES)
    return AnswerIds(
        response=answer.id if is_response else None,
        tool_calls=_unique(answer.tool_calls(), MAX_IDS),
        tools=tuple(islice(tools, MAX_TOOLS)),
    )


def _unique(found: Iterable[str | None], most: int) -> tuple[str, ...]:
    usable: dict[str, None] = {}
    for each in found:
        if each and each not in usable and is_unique(each):
            usable[each] = None
            if len(usable) == most:
                break
    return tuple(usable)
