"""What engines state in their answers: token counts, for calls without reports, and why they ended."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import replace

from autellix_backend.observe.settled_call import Usage
from autellix_backend.raw_json import JSON_ERRORS

TAIL_EVENTS = 16
"""How many events of a stream are kept before its last one; in some dialects one of these has the usage."""
MAX_EVENT_BYTES = 16 * 1024
"""A longer event has no usage, but for the last one of a response."""

REASON_EVENTS = 4
"""How many events before the usage are searched for finish reasons: parallel choices end one by one."""
MAX_REASON = 64
"""Characters of a reason that are kept."""

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""A usage with a count out of bounds counts as none."""


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Tokens | None = None


class _Counts(msgspec.Struct, frozen=True):
    """The counts as chat completions, responses and messages name them; an answer has one kind."""

    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None

    def usage(self) -> Usage | None:
        if self.prompt_tokens is not None:
            prompt_tokens, output_tokens = self.prompt_tokens, self.completion_tokens
        elif self.input_tokens is not None:
            # A message's input_tokens leave out the tokens read from the cache or written to it.
            beside = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
            prompt_tokens, output_tokens = self.input_tokens + beside, self.output_tokens
        else:
            return None
        details = self.prompt_tokens_details or self.input_tokens_details
        cached_tokens = details.cached_tokens if details else self.cache_read_input_tokens
        if cached_tokens is not None:
            # No more of a prompt was cached than there is.
            cached_tokens = min(cached_tokens, prompt_tokens)
        return Usage(prompt_tokens, output_tokens or 0, cached_tokens)


class _Response(msgspec.Struct, frozen=True):
    usage: _Counts | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Counts | None = None
    response: _Response | None = None
    """The place of the usage in the last event of a streamed response."""
    message: _Response | None = None
    """Its place in the first event of a streamed message."""


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    finish_reason: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    stop_reason: str | None = None


class _Endings(msgspec.Struct, frozen=True):
    """Why an answer ended, in the fields of completions, messages and a message's last event."""

    choices: tuple[_Choice, ...] = ()
    stop_reason: str | None = None
    delta: _Delta | None = None

    def reasons(self) -> tuple[str, ...]:
        reasons = (*(choice.finish_reason for choice in self.choices), self.stop_reason)
        of_delta = None if self.delta is None else self.delta.stop_reason
        return tuple(reason[:MAX_REASON] for reason in (*reasons, of_delta) if reason)


class _Opening(msgspec.Struct, frozen=True):
    response: dict[str, msgspec.Raw]


_FINISH = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
"""A choice that ends. Most chunks state that theirs does not."""

# Some servers count in floats, or in texts.
_decoder = msgspec.json.Decoder(_Answer, strict=False)
_ended_decoder = msgspec.json.Decoder(_Endings)
_opening_decoder = msgspec.json.Decoder(_Opening)


def read_usage(content: bytes, metadata: str = "") -> Usage | None:
    """Return what a whole answer states of itself, None without a readable usage.

    vLLM states that of embeddings in bytes in the header `metadata`.
    """
    counts = _read_counts(content) or _read_counts(metadata.encode())
    usage = None if counts is None else counts.usage()
    return None if usage is None else replace(usage, finish_reasons=_read_reasons(content))


def _read_counts(content: bytes) -> _Counts | None:
    try:
        answer = _decoder.decode(content)
    except JSON_ERRORS:
        return None
    return answer.usage or (answer.response.usage if answer.response else None)


def _read_start(event: bytes) -> _Counts | None:
    """Return the counts of the first event of a message."""
    try:
        message = _decoder.decode(event).message
    except JSON_ERRORS:
        return None
    return None if message is None else message.usage


def _read_reasons(content: bytes) -> tuple[str, ...]:
    try:
        return _ended_decoder.decode(content).reasons()
    except JSON_ERRORS:
        return ()


def finished_choices(data: bytes) -> set[int]:
    """Return the indexes of the choices that end with an event."""
    if _FINISH.search(data) is None:
        return set()
    try:
        choices = _ended_decoder.decode(data).choices
    except JSON_ERRORS:
        return set()
    return {choice.index for choice in choices if choice.finish_reason}


class StreamTail:
    """The data of a relayed stream's first event, and of its last few."""

    def __init__(self) -> None:
        self._first = b""
        self._last: deque[bytes] = deque(maxlen=TAIL_EVENTS)

    def feed(self, data: bytes) -> None:
        """Add the data of the next event."""
        if len(data) <= MAX_EVENT_BYTES:
            self._first = self._first or data
            self._last.append(data)

    def response(self) -> Mapping[str, msgspec.Raw]:
        """Return the object of a response as the stream opened it; empty without one."""
        try:
            return _opening_decoder.decode(self._first).response
        except JSON_ERRORS:
            return {}

    def usage(self, last: bytes = b"", streamed_events: int = 0) -> Usage | None:
        """Return the last usage in the kept events and in the data of the stream's last event.

        The reasons of its end stand in the same event, or in one of the last before it. A message states the
        tokens of its prompt in its first event; if it broke off, its events count as its output.
        """
        events = [*self._last, last]
        start = _read_start(self._first)
        for at in reversed(range(len(events))):
            counts = _read_counts(events[at])
            usage = None if counts is None else counts.usage() or _joined(start, counts)
            if usage is not None:
                near = events[max(0, at - REASON_EVENTS) : at + 1]
                reasons = tuple(reason for event in near for reason in _read_reasons(event))
                return replace(usage, finish_reasons=reasons)
        usage = None if start is None else start.usage()
        return None if usage is None else replace(usage, output_tokens=streamed_events)


def _joined(start: _Counts | None, end: _Counts) -> Usage | None:
    """Return the usage of a message whose last counts leave out its prompt."""
    return None if start is None else replace(start, output_tokens=end.output_tokens).usage()
