"""Reading messages, with one error for all that is wrong with them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class ReportError(ValueError):
    """A message is neither of the kinds that engines and gateways exchange."""


def decode(decoder: msgspec.json.Decoder[T], content: bytes, kind: str) -> T:
    """Read a message; keys of a later version are ignored.

    Raises:
        ReportError: the content is not a JSON object with every field of its type; the error names the kind.
    """
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReportError(f"not {kind}: {error}") from error
