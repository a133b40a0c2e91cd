"""The token counts that an engine states in its answers (`usage`), for calls that come without an account."""

from __future__ import annotations

import msgspec

TAIL_BYTES = 16 * 1024
"""How much of a stream's end is kept: its usage is in the last event before `data: [DONE]`."""

_DATA = b"data:"


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """What one answer says it took, in tokens."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Return the prompt tokens found in the prefix cache; None if the engine does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Answer(msgspec.Struct, frozen=True):
    usage: Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


def read_usage(content: bytes) -> Usage | None:
    """Return the usage of a whole answer or of one event's data; None if there is none that can be read."""
    try:
        return _decoder.decode(content).usage
    except (msgspec.DecodeError, RecursionError):
        return None


class StreamTail:
    """The last bytes of a stream that passes by."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._held = (self._held + data)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """Return the last usage in what was kept."""
        for line in reversed(self._held.splitlines()):
            if line.startswith(_DATA) and (usage := read_usage(line.removeprefix(_DATA))) is not None:
                return usage
        return None
