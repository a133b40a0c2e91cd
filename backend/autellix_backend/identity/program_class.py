"""The class of a program: its name, else a hash of its system prompt and the names of its tools.

And the prefix of its prompts, which those of other programs may share: its system prompt and tools, and where
these are short the start of its first message too.

A system prompt that holds a date or a user's name makes a class of its own; name such programs.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from autellix_backend.identity.aliases import Fields
from autellix_backend.identity.billing_line import without_billing_line
from autellix_backend.identity.scoped_ids import scoped
from autellix_backend.raw_json import JSON_ERRORS, MAX_READ_BYTES, decoded_or, has_many_objects

UNNAMED = "unnamed"
"""The class of programs without a name, a system prompt and tools."""
HASH_PREFIX = "prompt-"
HASH_BYTES = 6
MAX_HASHED_BYTES = 64 * 1024
"""How much of a system prompt is hashed."""
MIN_PREFIX_BYTES = 1024
"""A shorter shared prefix saves too little to look for."""

_SYSTEM_FIELDS = ("system", "instructions")
"""The system prompt of Anthropic's messages and of responses."""
_MESSAGES_FIELDS = ("messages", "input")
_PROMPT_FIELDS = ("prompt", "input")
"""A prompt that is one text."""
_SYSTEM_ROLES = ("system", "developer")


T = TypeVar("T")


class _PromptMessage(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b"")


class _TextPart(msgspec.Struct):
    text: str = ""


class _Function(msgspec.Struct):
    name: str = ""


class _Tool(msgspec.Struct):
    name: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


_messages_decoder = msgspec.json.Decoder(list[_PromptMessage])
_tools_decoder = msgspec.json.Decoder(list[_Tool])
_text_decoder = msgspec.json.Decoder(str | list[_TextPart])


def program_class(name: str | None, fields: Fields) -> str:
    """Return the class of a program by the name that a call of it sends, and by its body."""
    if name:
        return name
    system = _system_prompt(fields)
    names = (tool.name or tool.function.name for tool in _decoded(_tools_decoder, fields.get("tools")))
    tools = sorted(filter(None, names))
    if not system and not tools:
        return UNNAMED
    text = "\n".join(tools).encode()
    # The length keeps the two apart.
    digest = hashlib.blake2b(b"%d\n" % len(system) + system + text, digest_size=HASH_BYTES)
    return HASH_PREFIX + digest.hexdigest()


def prefix_id(fields: Fields) -> str:
    """Return the id of what a prompt begins with; empty if that is short."""
    tools = fields.get("tools", msgspec.Raw(b""))
    start = _system_prompt(fields) + bytes(memoryview(tools)[:MAX_HASHED_BYTES])
    if len(start) < MIN_PREFIX_BYTES:
        # Such as the task of a group of rollouts, behind one line of instructions.
        start += _first_text(fields)[:MIN_PREFIX_BYTES]
    if len(start) < MIN_PREFIX_BYTES:
        return ""
    return hashlib.blake2b(start, digest_size=HASH_BYTES).hexdigest()


def shared_prefix(tenant: str, fields: Fields) -> str:
    """Return the prefix id of a tenant's prompt: engines keep the caches of tenants apart."""
    prefix = prefix_id(fields)
    return scoped(tenant, prefix) if prefix else ""


def _first_text(fields: Fields) -> bytes:
    for name in _MESSAGES_FIELDS:
        for message in _decoded(_messages_decoder, fields.get(name)):
            if message.role not in _SYSTEM_ROLES:
                return _text(message.content)
    return next((_text(fields[name]) for name in _PROMPT_FIELDS if name in fields), b"")


def _system_prompt(fields: Fields) -> bytes:
    parts = [_text(fields[name]) for name in _SYSTEM_FIELDS if name in fields]
    for name in _MESSAGES_FIELDS:
        for message in _decoded(_messages_decoder, fields.get(name)):
            if message.role not in _SYSTEM_ROLES:
                break
            parts.append(_text(message.content))
    return without_billing_line(b"\n".join(parts)[:MAX_HASHED_BYTES])


def _text(raw: msgspec.Raw) -> bytes:
    """Return a text or the texts of a list of parts; anything else, and what is too long, as it was sent."""
    if memoryview(raw).nbytes > MAX_HASHED_BYTES:
        return bytes(memoryview(raw)[:MAX_HASHED_BYTES])
    try:
        text = _text_decoder.decode(raw)
    except JSON_ERRORS:
        return bytes(raw)
    return (text if isinstance(text, str) else "\n".join(part.text for part in text)).encode()


def _decoded(decoder: msgspec.json.Decoder[list[T]], raw: msgspec.Raw | None) -> list[T]:
    """Return the items of a list; none if it is absent, malformed, too long or of too many objects."""
    if raw is None or has_many_objects(raw):
        return []
    return decoded_or([], decoder, raw, MAX_READ_BYTES)
