"""The fields of a call's JSON body that say what it is, apart from the names of programs."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping

import msgspec

from autellix_backend.raw_json import JSON_ERRORS, MAX_SCALAR_BYTES, decoded_or, first_item_byte, scalar

XARGS = "vllm_xargs"
MAX_LENIENT_BYTES = 256 * 1024
"""The longest body that Python's own parser reads, which takes 2 ms for it."""


class _ToolChoice(msgspec.Struct):
    type: str = ""


_FREE = _ToolChoice()
_FORCED = ("function", "custom", "tool")
"""Types of a choice of one tool, in chats and responses, and in messages."""
_choice_decoder = msgspec.json.Decoder(str | _ToolChoice)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_xargs_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


def split_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """Split a body at its top level.

    Raises:
        ValueError: one of `JSON_ERRORS`, if it is not a JSON object.
    """
    try:
        return _fields_decoder.decode(data.removeprefix(codecs.BOM_UTF8))
    except JSON_ERRORS:
        fields = _split_as_vllm(data) if len(data) <= MAX_LENIENT_BYTES else None
        if fields is None:
            raise
        return fields


def _split_as_vllm(data: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the fields as Python's parser, which vLLM has, reads them; None if it cannot.

    It also accepts UTF-16 and UTF-32, and the numbers NaN and Infinity.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            return None
        # Half a surrogate pair in a name, which Python also reads, could not be sent on.
        json.dumps([*fields], ensure_ascii=False).encode()
        return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    except JSON_ERRORS:
        return None


def read_xargs(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the client's arguments for its engine.

    Raises:
        ValueError: one of `JSON_ERRORS`, if they are not a JSON object.
    """
    raw = fields.get(XARGS)
    return {} if raw is None else _xargs_decoder.decode(raw) or {}


def offers_tools(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether tools may be called, whose results come with another call; a forced one is a form."""
    if "tools" not in fields or first_item_byte(fields["tools"]) != b"{":
        return False
    choice = decoded_or(_FREE, _choice_decoder, fields.get("tool_choice"), MAX_SCALAR_BYTES)
    return isinstance(choice, str) or choice.type not in _FORCED


def asks_for_beams(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether its engine may split it into requests that lack its arguments."""
    return "use_beam_search" in fields and bool(scalar(fields["use_beam_search"]))
