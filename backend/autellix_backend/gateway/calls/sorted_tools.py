"""Tools in the order of their names, for clients that send the same ones in another order each time.

A template writes tools before the conversation, so that one that moves leaves nothing of a program's context
in the prefix cache. The descriptions stay as they are, byte for byte.
"""

from __future__ import annotations

import msgspec

from autellix_backend.raw_json import JSON_ERRORS, has_many_objects, items


class _NamedFunction(msgspec.Struct):
    name: str = ""


class _NamedTool(msgspec.Struct):
    type: str = ""
    name: str = ""
    function: _NamedFunction | None = None


_decoder = msgspec.json.Decoder(_NamedTool)


def sorted_tools(tools: msgspec.Raw) -> msgspec.Raw:
    """Return a body's `tools` by type and name; as they are if any has neither, or all are too many to read.

    Names are those of chat completions (`function.name`) or of messages and responses (`name`). Tools of one
    name keep their order.
    """
    if has_many_objects(tools):
        return tools
    try:
        named = [(_key(tool), tool) for tool in items(tools)]
    except JSON_ERRORS:
        return tools
    if any(key == ("", "") for key, _ in named):
        return tools
    return msgspec.Raw(b"[" + b",".join(bytes(tool) for _, tool in sorted(named, key=_first)) + b"]")


def _key(tool: msgspec.Raw) -> tuple[str, str]:
    found = _decoder.decode(tool)
    return found.type, found.name if found.function is None else found.function.name


def _first(pair: tuple[tuple[str, str], msgspec.Raw]) -> tuple[str, str]:
    return pair[0]
