"""The token counts that engines state in their answers (`usage`), for calls without reports."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

from autellix_backend.gateway.raw_json import JSON_ERRORS
from autellix_backend.observe.settled_call import Usage

TAIL_BYTES = 16 * 1024
"""How much of a stream is kept before its last event; in some dialects the event before it has the usage."""

_DATA = b"data:"
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""A usage with a count out of bounds counts as none."""


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Tokens | None = None


class _Counts(msgspec.Struct, frozen=True):
    """The counts as chat completions, responses and messages name them; an answer has one kind."""

    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens = 0
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None

    def usage(self) -> Usage | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        cached_tokens = details.cached_tokens if details else self.cache_read_input_tokens
        if self.prompt_tokens is not None:
            return _usage(self.prompt_tokens, self.completion_tokens, cached_tokens)
        if self.input_tokens is None:
            return None
        # A message's input_tokens leave out the tokens read from the cache or written to it.
        beside = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return _usage(self.input_tokens + beside, self.output_tokens, cached_tokens)


class _Response(msgspec.Struct, frozen=True):
    usage: _Counts | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Counts | None = None
    response: _Response | None = None
    """The place of the usage in the last event of a streamed response."""


_decoder = msgspec.json.Decoder(_Answer)


def read_usage(content: bytes) -> Usage | None:
    """Return the usage of a whole answer or of one event's data, None without a readable one."""
    try:
        answer = _decoder.decode(content)
    except JSON_ERRORS:
        return None
    counts = answer.usage or (answer.response.usage if answer.response else None)
    return counts.usage() if counts else None


def _usage(prompt_tokens: int, output_tokens: int, cached_tokens: int | None) -> Usage:
    """Return a usage; no more of a prompt was cached than there is."""
    return Usage(
        prompt_tokens, output_tokens, None if cached_tokens is None else min(cached_tokens, prompt_tokens)
    )


class StreamTail:
    """The last bytes of a relayed stream, TAIL_BYTES of them or a few more."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Append the next bytes."""
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) >= TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def usage(self, last_event: bytes = b"") -> Usage | None:
        """Return the last usage in the kept bytes and the stream's last event."""
        for line in reversed(b"".join((*self._parts, last_event)).splitlines()):
            if line.startswith(_DATA) and (usage := read_usage(line.removeprefix(_DATA))) is not None:
                return usage
        return None
