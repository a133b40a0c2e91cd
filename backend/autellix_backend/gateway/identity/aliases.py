"""Every name under which a client says which program its call belongs to: one table, read in its order.

The first row that is present wins, field by field: the program, its thread, its parent, its end. Tiers order
the rows by how much the name means to say: our own headers; protocols that other schedulers made for exactly
this; what coding agents and proxies send anyway; and last the ids of queues and caches, which are mostly one
program's and sometimes a whole tenant's. OpenAI's `user` and `safety_identifier` are no rows: they name a
person, whose programs have nothing to do with each other.

A malformed id of our own is the client's bug and an error. One under a foreign name was not meant for us: it
must not break the call, so what is unusable is ignored and counted, and what is only too long or not ASCII is
replaced by its hash, the same for every call and gateway.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from autellix_wire import FINAL, MAX_ID_BYTES, PROGRAM_ID, SESSION_ID, THREAD_ID, InvalidIdError, check_id

ANONYMOUS = "request"
FOREIGN_TOKEN = "foreign-token"
CONTENT_CHAIN = "content-chain"

Fields = Mapping[str, msgspec.Raw]
"""A JSON object split at its top level."""


class Tier(enum.IntEnum):
    """How much a name means to say; a lower number wins."""

    OWN = 1
    PROTOCOL = 2
    CLIENT = 3
    FLOW = 4


class Gives(enum.Enum):
    """What a row tells of a call."""

    PROGRAM = "program"
    PARENT = "parent"
    """The id, of the same kind as the program's, of the agent that started this one."""
    THREAD = "thread"
    AGENT = "agent"
    """A sub-agent of the program."""
    FINAL = "final"


Reader = Callable[[str], str | None]
"""Finds the id in a value; None where the value holds none, and does not mean to."""


def plain(value: str) -> str:
    """Take the value itself."""
    return value


def claude_session(user_id: str) -> str | None:
    """Find the session in Anthropic's `metadata.user_id` as Claude Code fills it; others name a person."""
    if user_id.startswith("{"):
        try:
            return msgspec.json.decode(user_id, type=_ClaudeUser).session_id
        except msgspec.DecodeError:
            return None
    _, marker, session = user_id.rpartition("_session_")
    return session if marker and session else None


def conversation_key(key: str) -> str | None:
    """Take a `prompt_cache_key` that is made for one conversation: a UUID, or an id of OpenCode's.

    Codex and OpenCode put their session here; applications put words, the same for all they do.
    """
    return key if _CONVERSATION.fullmatch(key) else None


class _ClaudeUser(msgspec.Struct):
    session_id: str | None = None


_CONVERSATION = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|ses_[0-9A-Za-z]{16,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One name for one thing: a header, or a path into the JSON body."""

    source: str
    """What reports and metrics call it."""
    tier: Tier
    gives: Gives
    client: str
    """Whose ids these are: a parent counts only beside a program of the same client."""
    header: str | None = None
    header_key: str = ""
    """The header as servers spell it."""
    path: tuple[str, ...] = ()
    read: Reader = plain

    @property
    def name(self) -> str:
        """Return the header's name, or the body's path with dots."""
        return self.header or ".".join(self.path)


def _header(source: str, tier: Tier, gives: Gives, client: str, header: str, read: Reader = plain) -> Alias:
    return Alias(
        source=source,
        tier=tier,
        gives=gives,
        client=client,
        header=header,
        header_key=header.lower(),
        read=read,
    )


def _body(source: str, tier: Tier, gives: Gives, client: str, path: str, read: Reader = plain) -> Alias:
    names = tuple(path.split("."))
    return Alias(source=source, tier=tier, gives=gives, client=client, path=names, read=read)


_OWN, _PROTOCOL, _CLIENT, _FLOW = Tier.OWN, Tier.PROTOCOL, Tier.CLIENT, Tier.FLOW
_PROGRAM, _PARENT, _THREAD = Gives.PROGRAM, Gives.PARENT, Gives.THREAD
_AGENT, _FINAL = Gives.AGENT, Gives.FINAL

ALIASES: tuple[Alias, ...] = (
    _header("program-header", _OWN, _PROGRAM, "autellix", PROGRAM_ID),
    _header("session-header", _OWN, _PROGRAM, "autellix", SESSION_ID),
    _header("thread-header", _OWN, _THREAD, "autellix", THREAD_ID),
    _header("final-header", _OWN, _FINAL, "autellix", FINAL),
    # NVIDIA Dynamo
    _header("dynamo-session", _PROTOCOL, _PROGRAM, "dynamo", "X-Dynamo-Session-ID"),
    _header("dynamo-parent", _PROTOCOL, _PARENT, "dynamo", "X-Dynamo-Parent-Session-ID"),
    _header("dynamo-final", _PROTOCOL, _FINAL, "dynamo", "X-Dynamo-Session-Final"),
    # ThunderAgent
    _body("body-program-id", _PROTOCOL, _PROGRAM, "thunderagent", "program_id"),
    _body("extra-body-program-id", _PROTOCOL, _PROGRAM, "thunderagent", "extra_body.program_id"),
    # Continuum
    _body("body-job-id", _PROTOCOL, _PROGRAM, "continuum", "job_id"),
    _body("body-last-step", _PROTOCOL, _FINAL, "continuum", "is_last_step"),
    # vLLM's session, in its three places; OpenCode uses the header too, and adds the parent.
    _header("x-session-id", _PROTOCOL, _PROGRAM, "x-session", "X-Session-ID"),
    _header("x-parent-session-id", _PROTOCOL, _PARENT, "x-session", "X-Parent-Session-ID"),
    _body("body-session-id", _PROTOCOL, _PROGRAM, "vllm", "session_id"),
    _body("xargs-session-id", _PROTOCOL, _PROGRAM, "vllm", "vllm_xargs.session_id"),
    # Claude Code: one session over all its agents
    _header("claude-code-session", _CLIENT, _PROGRAM, "claude-code", "X-Claude-Code-Session-Id"),
    _body("claude-code-user-id", _CLIENT, _PROGRAM, "claude-code", "metadata.user_id", claude_session),
    _header("claude-code-agent", _CLIENT, _AGENT, "claude-code", "X-Claude-Code-Agent-Id"),
    # Codex: one session over all its threads; before it spelt the header with an underscore
    _header("codex-session", _CLIENT, _PROGRAM, "codex", "session-id"),
    _header("codex-session-old", _CLIENT, _PROGRAM, "codex", "session_id"),
    _header("codex-thread", _CLIENT, _AGENT, "codex", "thread-id"),
    # OpenCode
    _header("opencode-session", _CLIENT, _PROGRAM, "opencode", "x-opencode-session"),
    _header("session-affinity", _CLIENT, _PROGRAM, "x-session", "x-session-affinity"),
    # LiteLLM
    _header("litellm-session", _CLIENT, _PROGRAM, "litellm", "x-litellm-session-id"),
    _header("litellm-trace", _CLIENT, _PROGRAM, "litellm", "x-litellm-trace-id"),
    _body("body-litellm-session-id", _CLIENT, _PROGRAM, "litellm", "litellm_session_id"),
    _body("metadata-session-id", _CLIENT, _PROGRAM, "litellm", "metadata.session_id"),
    # llm-d, and the inference gateway it comes from
    _header("llm-d-fairness", _FLOW, _PROGRAM, "llm-d", "x-llm-d-inference-fairness-id"),
    _header("gateway-fairness", _FLOW, _PROGRAM, "llm-d", "x-gateway-inference-fairness-id"),
    _body("prompt-cache-key", _FLOW, _PROGRAM, "openai", "prompt_cache_key", conversation_key),
)

PROGRAM_SOURCES: tuple[str, ...] = (
    *(alias.source for alias in ALIASES if alias.gives is Gives.PROGRAM),
    CONTENT_CHAIN,
    ANONYMOUS,
    FOREIGN_TOKEN,
)
"""All that `X-Autellix-Identity-Source` can say."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An id, and the row that it was found by."""

    alias: Alias
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a request says of itself, after the table's precedence."""

    program: Claim | None
    parent: str | None
    """Only from the program's own client."""
    thread: str | None
    agent: str | None
    """A sub-agent within the program; or the program itself, where its main agent has an id too."""
    final: Alias | None
    """The row that says that this is the last call, if one does."""
    conflicts: tuple[tuple[str, str], ...]
    """Sources (kept, dropped) that name different programs."""
    malformed: tuple[str, ...]
    """Sources whose values could not be used."""


def find_claims(headers: Mapping[str, str], fields: Fields) -> Claims:
    """Read a request by the table; `headers` has lower-case names, `fields` is its body.

    Raises:
        InvalidIdError: if a value of our own headers is malformed.
    """
    rows = _present_rows(headers, fields)
    if not rows:
        return _NO_CLAIMS
    claims: list[Claim] = []
    malformed: list[str] = []
    for _, alias in rows:
        try:
            value = _value_of(alias, headers, fields)
        except _UnusableError:
            malformed.append(alias.source)
            continue
        if value is not None:
            claims.append(Claim(alias, value))
    programs = [claim for claim in claims if claim.alias.gives is Gives.PROGRAM]
    program = programs[0] if programs else None
    thread, agent = _first(claims, Gives.THREAD), _first(claims, Gives.AGENT)
    final = _first(claims, Gives.FINAL)
    return Claims(
        program=program,
        parent=_parent_of(program, claims),
        thread=None if thread is None else thread.value,
        agent=None if agent is None else agent.value,
        final=final.alias if final is not None and final.value == _YES else None,
        conflicts=_conflicts(programs),
        malformed=tuple(malformed),
    )


def usable_id(text: str) -> str | None:
    """Return a foreign id by the wire rules: itself, its hash if it breaks them, None if it is empty."""
    text = text.strip()
    if not text:
        return None
    if len(text) <= MAX_ID_BYTES and text.isascii() and text.isprintable():
        return text
    return "hashed-" + hashlib.sha256(_octets(text)).hexdigest()[:32]


# Few rows are present in a request and most requests are none's, so absence has to be cheap.
_BY_HEADER = {alias.header_key: (place, alias) for place, alias in enumerate(ALIASES) if alias.header}
_BY_FIELD = {
    name: tuple((place, alias) for place, alias in enumerate(ALIASES) if alias.path[:1] == (name,))
    for name in {alias.path[0] for alias in ALIASES if alias.path}
}
_NO_CLAIMS = Claims(
    program=None, parent=None, thread=None, agent=None, final=None, conflicts=(), malformed=()
)
_YES = "true"
_TRUTHS = {"true": _YES, "1": _YES, "yes": _YES, "on": _YES, "false": "", "0": "", "no": "", "off": ""}

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_scalar_decoder = msgspec.json.Decoder(str | int | bool | None)


class _UnusableError(ValueError):
    """A foreign value that is no id."""


def _present_rows(headers: Mapping[str, str], fields: Fields) -> list[tuple[int, Alias]]:
    rows = [_BY_HEADER[name] for name in headers if name in _BY_HEADER]
    for name in fields:
        rows.extend(_BY_FIELD.get(name, ()))
    rows.sort(key=_place)
    return rows


def _place(row: tuple[int, Alias]) -> int:
    return row[0]


def _value_of(alias: Alias, headers: Mapping[str, str], fields: Fields) -> str | None:
    """Return what a row says: an id, or for the end _YES or nothing; None if it says nothing at all."""
    if alias.header is not None:
        text: str | None = headers[alias.header_key]
        assert text is not None, "only present rows are read"
        if alias.tier is Tier.OWN:
            return _own_truth(text) if alias.gives is Gives.FINAL else check_id(text, alias.name)
    else:
        text = _text_at(alias, fields)
    if text is None:
        return None
    if alias.gives is Gives.FINAL:
        return _truth(text)
    found = alias.read(text)
    if found is None:
        return None
    usable = usable_id(found)
    if usable is None:
        raise _UnusableError
    return usable


def _text_at(alias: Alias, fields: Fields) -> str | None:
    """Return the text, number or truth value at a row's path into the body; None if there is nothing."""
    raw: msgspec.Raw | None = fields[alias.path[0]]
    for name in alias.path[1:]:
        raw = None if raw is None else _field_of(raw, name)
    if raw is None:
        return None
    try:
        value = _scalar_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise _UnusableError from error
    if isinstance(value, bool) and alias.gives is not Gives.FINAL:
        raise _UnusableError
    # Counters serve as ids too.
    return None if value is None else str(value)


def _field_of(raw: msgspec.Raw, name: str) -> msgspec.Raw | None:
    try:
        return _object_decoder.decode(raw).get(name)
    except msgspec.DecodeError:
        # No object, so there is no such field in it; what the engine says of it is the engine's affair.
        return None


def _first(claims: list[Claim], gives: Gives) -> Claim | None:
    return next((claim for claim in claims if claim.alias.gives is gives), None)


def _parent_of(program: Claim | None, claims: list[Claim]) -> str | None:
    if program is None:
        return None
    parents = (claim for claim in claims if claim.alias.gives is Gives.PARENT)
    return next((claim.value for claim in parents if claim.alias.client == program.alias.client), None)


def _conflicts(programs: list[Claim]) -> tuple[tuple[str, str], ...]:
    """Pair the winner with each other client's program; ids of queues and caches are not meant to agree."""
    if len(programs) < 2:
        return ()
    kept = programs[0]
    return tuple(
        (kept.alias.source, other.alias.source)
        for other in programs[1:]
        if other.value != kept.value
        and other.alias.client != kept.alias.client
        and other.alias.tier is not Tier.FLOW
    )


def _own_truth(text: str) -> str:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidIdError(FINAL, f"is {text!r}, neither true nor false")
    return _TRUTHS[lowered]


def _truth(text: str) -> str:
    truth = _TRUTHS.get(text.strip().lower())
    if truth is None:
        raise _UnusableError
    return truth


def _octets(text: str) -> bytes:
    # A header's bytes arrive as Latin-1: so the same id has one hash in a header and in a body.
    try:
        octets = text.encode("latin-1")
        octets.decode()
    except UnicodeError:
        return text.encode()
    return octets
