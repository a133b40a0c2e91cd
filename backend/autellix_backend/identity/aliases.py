"""The aliases under which clients name the program of a call: one table, in order of precedence.

The first alias that is present wins, field by field: the program, its thread, its parent, its end. Tiers rank
aliases by how surely they mean a program: our own headers; protocols that other schedulers made for this
purpose; ids that coding agents and proxies send anyway; and last the ids of queues and caches, which mostly
mean one program and sometimes a whole tenant. OpenAI's `user` and `safety_identifier` are left out: they name
a person, whose programs are unrelated.

Headers that the table lacks name a program if they are spelled as ids of sessions are: `vendor_alias`.

A malformed id in our own headers is a client's bug and an error. A foreign id was not meant for us and must
not break the call: an unusable value is ignored and counted, and one that is too long or not ASCII is
replaced by its hash, which is the same for every call and gateway.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from urllib.parse import unquote

import msgspec

from autellix_backend.raw_json import JSON_ERRORS, MAX_SCALAR_BYTES, RawObjects, first_byte
from autellix_wire.headers import FINAL, PROGRAM_ID, SESSION_ID, THREAD_ID
from autellix_wire.ids import MAX_ID_BYTES, InvalidIdError, check_id

ANONYMOUS = "request"
PROGRAM_HEADER = "program-header"
FOREIGN_TOKEN = "foreign-token"
ANSWER_ID = "answer-id"
VENDOR_SESSION = "vendor-session"
CONTENT_CHAIN = "content-chain"
OUTSIDE = "implicit"
"""Its client named only its process: it is in the program of a call it depends on, or in one of its own."""

Fields = Mapping[str, msgspec.Raw]
"""A JSON object split at its top level."""


class Tier(enum.IntEnum):
    """The rank of an alias; a lower number wins."""

    OWN = 1
    PROTOCOL = 2
    CLIENT = 3
    FLOW = 4


class AliasField(enum.Enum):
    """The field of a call's identity that an alias names."""

    PROGRAM = "program"
    PARENT = "parent"
    """The id of the agent that started this one, of the same kind as the program's id."""
    THREAD = "thread"
    AGENT = "agent"
    """A sub-agent of the program."""
    FINAL = "final"


def claude_session(user_id: str) -> str | None:
    """Return the session in Anthropic's `metadata.user_id` as agents fill it; others name a person."""
    if user_id.startswith("{"):
        try:
            return msgspec.json.decode(user_id, type=_ClaudeUser).session_id
        except JSON_ERRORS:
            return None
    user, marker, session = user_id.rpartition("session_")
    return session if marker and session and (not user or user.endswith("_")) else None


def conversation_key(key: str) -> str | None:
    """Return a `prompt_cache_key` that names one conversation: a UUID, or an id as some agents make it.

    Agents send their session; applications send one word for all their calls.
    """
    return key if _CONVERSATION.fullmatch(key) else None


def not_resumed(expected: str) -> str:
    """Return whether a call is a program's last one by `expected_resume`; another text if it is neither."""
    return {"true": "false", "false": "true"}.get(expected.lower(), expected)


def session_closed(action: str) -> str:
    """Return whether a call is a program's last one by the action on its session."""
    return {"open": "false", "close": "true"}.get(action, action)


def sub_agent(agent: str) -> str | None:
    """Return the agent of a task, None for the leading one, which is the task's program itself."""
    return None if agent.rpartition(":")[2] == "lead" else agent


def conversation_in_baggage(baggage: str) -> str | None:
    """Return the conversation in W3C's `baggage`, else the session, whose values are percent-encoded.

    The bounds are those of the specification; a member without a value is skipped.
    """
    if len(baggage) > MAX_BAGGAGE_BYTES:
        raise _UnusableError
    found: dict[str, str] = {}
    for member in baggage.split(",", MAX_BAGGAGE_MEMBERS)[:MAX_BAGGAGE_MEMBERS]:
        name, _, value = member.partition(";")[0].partition("=")
        if name.strip() in _BAGGAGE_KEYS and value.strip():
            found.setdefault(name.strip(), unquote(value.strip()))
    return next((found[key] for key in _BAGGAGE_KEYS if key in found), None)


class _ClaudeUser(msgspec.Struct):
    session_id: str | None = None


_CONVERSATION = re.compile(
    r"(session_)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|ses_[0-9A-Za-z]{16,}|agents-sdk:\w+:\S{8,}"
)
MAX_BAGGAGE_BYTES = 8192
MAX_BAGGAGE_MEMBERS = 64
_BAGGAGE_KEYS = ("gen_ai.conversation.id", "session.id")
_DAY_COUNTER = re.compile(r"\d{8}_\d+")


@dataclass(frozen=True, slots=True)
class Alias:
    """One name of one field: a header, or a dotted path into the JSON body."""

    source: str
    """Its name in receipts and metrics."""
    tier: Tier
    field: AliasField
    client: str
    """The software that sends it; a parent counts only beside a program of the same client."""
    _: KW_ONLY
    header: str = ""
    body: str = ""
    read: Callable[[str], str | None] | None = None
    """Extracts the id, or the truth, from a value; None if the value is valid and holds none."""
    beside: tuple[str, ...] = ()
    """The sources of the program that it counts beside; any without one."""
    is_strict: bool = False
    """Whether its sender's contract calls a malformed value an error."""

    header_key: str = dataclasses.field(init=False)
    """The header in lower case."""
    path: tuple[str, ...] = dataclasses.field(init=False)
    """The names on the path into the body."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "header_key", self.header.lower())
        object.__setattr__(self, "path", tuple(self.body.split(".")) if self.body else ())


_OWN, _PROTOCOL, _CLIENT, _FLOW = Tier
_PROGRAM, _PARENT, _THREAD, _AGENT, _FINAL = AliasField

_AGENTIC = "vllm_xargs.agentic_context."

ALIASES: tuple[Alias, ...] = (
    Alias(PROGRAM_HEADER, _OWN, _PROGRAM, "autellix", header=PROGRAM_ID),
    Alias("session-header", _OWN, _PROGRAM, "autellix", header=SESSION_ID),
    Alias("thread-header", _OWN, _THREAD, "autellix", header=THREAD_ID),
    Alias("final-header", _OWN, _FINAL, "autellix", header=FINAL),
    # vLLM's router, whose own order this is
    Alias("agentic-program", _PROTOCOL, _PROGRAM, "vllm-router", body=_AGENTIC + "program_id"),
    Alias("agentic-task", _PROTOCOL, _PROGRAM, "vllm-router", body=_AGENTIC + "task_id"),
    Alias("agentic-session", _PROTOCOL, _PROGRAM, "vllm-router", body=_AGENTIC + "session_id"),
    Alias(
        "agentic-agent",
        _PROTOCOL,
        _AGENT,
        "vllm-router",
        body=_AGENTIC + "agent_id",
        read=sub_agent,
        beside=("agentic-task", "agentic-session"),
    ),
    Alias(
        "agentic-resume",
        _PROTOCOL,
        _FINAL,
        "vllm-router",
        body=_AGENTIC + "expected_resume",
        read=not_resumed,
        is_strict=True,
    ),
    Alias("agentic-root", _PROTOCOL, _PARENT, "vllm-router", body=_AGENTIC + "root_program_id"),
    Alias("agentic-parent", _PROTOCOL, _PARENT, "vllm-router", body=_AGENTIC + "parent_program_id"),
    Alias("agent-hint", _PROTOCOL, _PROGRAM, "agent-hint", body="agent_hint.session_id"),
    Alias("agent-hint-parent", _PROTOCOL, _PARENT, "agent-hint", body="agent_hint.parent_session_id"),
    Alias(
        "agent-hint-resume",
        _PROTOCOL,
        _FINAL,
        "agent-hint",
        body="agent_hint.expected_resume",
        read=not_resumed,
        is_strict=True,
    ),
    # NVIDIA Dynamo
    Alias("dynamo-session", _PROTOCOL, _PROGRAM, "dynamo", header="X-Dynamo-Session-ID"),
    Alias("dynamo-parent", _PROTOCOL, _PARENT, "dynamo", header="X-Dynamo-Parent-Session-ID"),
    Alias("dynamo-final", _PROTOCOL, _FINAL, "dynamo", header="X-Dynamo-Session-Final"),
    Alias("dynamo-trajectory", _PROTOCOL, _PROGRAM, "dynamo", header="X-Dynamo-Trajectory-ID"),
    Alias("nvext-session", _PROTOCOL, _PROGRAM, "dynamo", body="nvext.session_control.session_id"),
    Alias(
        "nvext-close",
        _PROTOCOL,
        _FINAL,
        "dynamo",
        body="nvext.session_control.action",
        read=session_closed,
    ),
    Alias("nvext-context", _PROTOCOL, _PROGRAM, "dynamo", body="nvext.agent_context.session_id"),
    # ThunderAgent
    Alias("body-program-id", _PROTOCOL, _PROGRAM, "thunderagent", body="program_id"),
    Alias("extra-body-program-id", _PROTOCOL, _PROGRAM, "thunderagent", body="extra_body.program_id"),
    # Continuum
    Alias("body-job-id", _PROTOCOL, _PROGRAM, "continuum", body="job_id"),
    Alias("body-last-step", _PROTOCOL, _FINAL, "continuum", body="is_last_step"),
    # vLLM's session, in its three places; OpenCode uses the header too, and adds the parent.
    Alias("x-session-id", _PROTOCOL, _PROGRAM, "x-session", header="X-Session-ID"),
    Alias("x-parent-session-id", _PROTOCOL, _PARENT, "x-session", header="X-Parent-Session-ID"),
    Alias("body-session-id", _PROTOCOL, _PROGRAM, "vllm", body="session_id"),
    Alias("xargs-session-id", _PROTOCOL, _PROGRAM, "vllm", body="vllm_xargs.session_id"),
    # SGLang's session, by its two names
    Alias("sglang-session", _PROTOCOL, _PROGRAM, "sglang", body="session_params.session_id"),
    Alias("sglang-session-id", _PROTOCOL, _PROGRAM, "sglang", body="session_params.id"),
    # Claude Code: one session over all its agents
    Alias("claude-code-session", _CLIENT, _PROGRAM, "claude-code", header="X-Claude-Code-Session-Id"),
    Alias(
        "claude-code-user-id", _CLIENT, _PROGRAM, "claude-code", body="metadata.user_id", read=claude_session
    ),
    Alias("claude-code-agent", _CLIENT, _AGENT, "claude-code", header="X-Claude-Code-Agent-Id"),
    # Codex: one session over all its threads; proxies that drop its headers keep the body
    Alias("codex-session", _CLIENT, _PROGRAM, "codex", header="session-id"),
    Alias("codex-thread", _CLIENT, _AGENT, "codex", header="thread-id"),
    Alias("body-codex-session", _CLIENT, _PROGRAM, "codex", body="client_metadata.session_id"),
    Alias("body-codex-thread", _CLIENT, _AGENT, "codex", body="client_metadata.thread_id"),
    # OpenCode, and what others send to the providers that it hosts
    Alias("opencode-session", _CLIENT, _PROGRAM, "opencode", header="x-opencode-session"),
    Alias("session-affinity", _CLIENT, _PROGRAM, "x-session", header="x-session-affinity"),
    # LiteLLM
    Alias("litellm-session", _CLIENT, _PROGRAM, "litellm", header="x-litellm-session-id"),
    Alias("litellm-trace", _CLIENT, _PROGRAM, "litellm", header="x-litellm-trace-id"),
    Alias("body-litellm-session-id", _CLIENT, _PROGRAM, "litellm", body="litellm_session_id"),
    Alias("metadata-session-id", _CLIENT, _PROGRAM, "litellm", body="metadata.session_id"),
    # Qwen Code
    Alias("metadata-sessionid", _CLIENT, _PROGRAM, "qwen-code", body="metadata.sessionId"),
    # OpenAI: the conversation that the server keeps
    Alias("conversation", _CLIENT, _PROGRAM, "openai", body="conversation"),
    Alias("conversation-id", _CLIENT, _PROGRAM, "openai", body="conversation.id"),
    # llm-d, and the inference gateway it comes from
    Alias("llm-d-fairness", _FLOW, _PROGRAM, "llm-d", header="x-llm-d-inference-fairness-id"),
    Alias("gateway-fairness", _FLOW, _PROGRAM, "llm-d", header="x-gateway-inference-fairness-id"),
    # Shepherd Model Gateway, formerly SGLang's router
    Alias("smg-routing-key", _FLOW, _PROGRAM, "smg", header="X-SMG-Routing-Key"),
    Alias("prompt-cache-key", _FLOW, _PROGRAM, "openai", body="prompt_cache_key", read=conversation_key),
    # OpenTelemetry, in W3C's baggage, which MCP carries too: its session may be all that a person does
    Alias("baggage", _FLOW, _PROGRAM, "opentelemetry", header="baggage", read=conversation_in_baggage),
    Alias(
        "meta-baggage", _FLOW, _PROGRAM, "opentelemetry", body="_meta.baggage", read=conversation_in_baggage
    ),
)

PROGRAM_SOURCES: tuple[str, ...] = (
    *(alias.source for alias in ALIASES if alias.field is AliasField.PROGRAM),
    VENDOR_SESSION,
    ANSWER_ID,
    CONTENT_CHAIN,
    OUTSIDE,
    ANONYMOUS,
    FOREIGN_TOKEN,
)
"""The values of `X-Autellix-Identity-Source`."""


@lru_cache(maxsize=1024)
def vendor_alias(header: str) -> Alias | None:
    """Return the alias that a lower-case header outside the table is by its spelling.

    `x-<vendor>-session-id` names a program, `x-<vendor>-parent-session-id` its parent. `x-` and the vendor
    may be absent; `_` may join the last two words, `key` stand for `id`, and `conversation` or `task` for
    `session`. A `thread-id` needs a vendor, or would be Codex's.
    """
    match = _VENDOR.fullmatch(header)
    if match is None:
        return None
    field = _PARENT if match["parent"] else _PROGRAM
    return Alias(VENDOR_SESSION, _CLIENT, field, f"vendor {match['vendor']}", header=header, read=_vendor_id)


class ResolvedAliases(msgspec.Struct, frozen=True, kw_only=True):
    """The ids that a request names, by the table's precedence."""

    program: str | None = None
    named_by: Alias | None = None
    """The alias that names the program."""
    parent: str | None = None
    """Only from the program's own client."""
    thread: str | None = None
    agent: str | None = None
    """A sub-agent of the program; or the program itself, if its main agent has an id too."""
    final: Alias | None = None
    """The alias that marks this call as the last one, if any."""
    conflicts: tuple[tuple[str, str], ...] = ()
    """Pairs of sources (kept, dropped) that name different programs."""
    malformed: tuple[str, ...] = ()
    """Sources whose values are unusable."""


def resolve_aliases(
    headers: Mapping[str, str], fields: Fields, objects: RawObjects | None = None
) -> ResolvedAliases:
    """Return the ids that a request names; `headers` has lower-case names, `fields` is its body.

    Raises:
        InvalidIdError: if a value of our own headers is malformed, or one whose contract calls it an error.
    """
    present = _present_aliases(headers, fields)
    if not present:
        return _NO_ALIASES
    objects = objects or RawObjects(fields)
    matches: list[tuple[Alias, str]] = []
    malformed: list[str] = []
    for _, alias in present:
        try:
            value = _value_of(alias, headers, objects)
        except _UnusableError as error:
            if alias.is_strict:
                raise InvalidIdError(alias.body, "is neither true nor false") from error
            malformed.append(alias.source)
            continue
        if value is not None:
            matches.append((alias, value))
    first: dict[AliasField, tuple[Alias, str] | tuple[None, None]]
    first = {match[0].field: match for match in reversed(matches)}
    named_by, program = first.get(_PROGRAM, _NO_MATCH)
    final, is_final = first.get(_FINAL, _NO_MATCH)
    return ResolvedAliases(
        program=program,
        named_by=named_by,
        parent=_parent_of(named_by, matches),
        thread=first.get(_THREAD, _NO_MATCH)[1],
        agent=_agent_of(named_by, matches),
        final=final if is_final == _YES else None,
        conflicts=_conflicts([match for match in matches if match[0].field is _PROGRAM]),
        malformed=tuple(malformed),
    )


def usable_id(text: str) -> str | None:
    """Return a foreign id, its hash if it breaks the wire's rules, None if it is empty."""
    text = text.strip()
    if not text:
        return None
    if len(text) <= MAX_ID_BYTES and text.isascii() and text.isprintable():
        return text
    return "hashed-" + hashlib.sha256(_octets(text)).hexdigest()[:32]


# Most requests have no alias at all, so absence has to be cheap.
_BY_HEADER = {alias.header_key: (place, alias) for place, alias in enumerate(ALIASES) if alias.header}
_BY_FIELD = {
    name: tuple((place, alias) for place, alias in enumerate(ALIASES) if alias.path[:1] == (name,))
    for name in {alias.path[0] for alias in ALIASES if alias.path}
}
_VENDOR = re.compile(
    r"(?P<vendor>(?:[a-z0-9]+-)*?)(?P<parent>parent-)?"
    r"(?:(?:session|conversation|task)[_-](?:id|key)|(?<=[a-z0-9]-)thread-id)"
)
_VENDOR_PLACE = sum(alias.tier < Tier.FLOW for alias in ALIASES) - 0.5
"""Behind all other clients."""
_HOLDERS = frozenset(alias.path[:-1] for alias in ALIASES if alias.path)
"""Paths of objects that hold names."""
_NO_ALIASES = ResolvedAliases()
_NO_MATCH = (None, None)
_YES = "true"
_TRUTHS = {"true": _YES, "1": _YES, "yes": _YES, "on": _YES, "false": "", "0": "", "no": "", "off": ""}

_scalar_decoder = msgspec.json.Decoder(str | int | bool | None)


class _UnusableError(ValueError):
    """A foreign value that cannot be an id."""


def _present_aliases(headers: Mapping[str, str], fields: Fields) -> list[tuple[float, Alias]]:
    present: list[tuple[float, Alias]] = []
    for name in headers:
        if name in _BY_HEADER:
            present.append(_BY_HEADER[name])
        elif (alias := vendor_alias(name)) is not None:
            present.append((_VENDOR_PLACE, alias))
    for name in fields:
        present.extend(_BY_FIELD.get(name, ()))
    # Headers of several vendors are in one order for every call, whatever is in front of the gateway.
    present.sort(key=lambda placed: (placed[0], placed[1].header))
    return present


def _vendor_id(text: str) -> str | None:
    # Goose counts its sessions of a day, so those of two users have the same ids.
    return None if _DAY_COUNTER.fullmatch(text.strip()) else text


def _value_of(alias: Alias, headers: Mapping[str, str], objects: RawObjects) -> str | None:
    # An id; for FINAL, _YES or an empty string; None if the alias is present without a value.
    if alias.header:
        text: str | None = headers[alias.header_key]
        assert text is not None, "only present aliases are read"
        if alias.tier is Tier.OWN:
            return _own_truth(text) if alias.field is AliasField.FINAL else check_id(text, alias.header)
    else:
        text = _text_at(alias, objects)
    if text is None:
        return None
    if alias.field is AliasField.FINAL:
        return _truth(text if alias.read is None else alias.read(text) or "")
    found = text if alias.read is None else alias.read(text)
    if found is None:
        return None
    usable = usable_id(found)
    if usable is None:
        raise _UnusableError
    return usable


def _text_at(alias: Alias, objects: RawObjects) -> str | None:
    # What is not an object has no such field; the value is left for the engine to reject.
    raw = (objects.at(alias.path[:-1]) or {}).get(alias.path[-1])
    if raw is None or (alias.path in _HOLDERS and first_byte(raw) == b"{"):
        return None
    if memoryview(raw).nbytes > MAX_SCALAR_BYTES:
        raise _UnusableError
    try:
        value = _scalar_decoder.decode(raw)
        text = None if value is None else str(value)
    except JSON_ERRORS as error:
        raise _UnusableError from error
    if isinstance(value, bool) and alias.field is not AliasField.FINAL:
        raise _UnusableError
    # Counters serve as ids too.
    return text


def _agent_of(named_by: Alias | None, matches: list[tuple[Alias, str]]) -> str | None:
    agents = ((alias, value) for alias, value in matches if alias.field is AliasField.AGENT)
    source = None if named_by is None else named_by.source
    return next((value for alias, value in agents if not alias.beside or source in alias.beside), None)


def _parent_of(named_by: Alias | None, matches: list[tuple[Alias, str]]) -> str | None:
    if named_by is None:
        return None
    parents = ((alias, value) for alias, value in matches if alias.field is AliasField.PARENT)
    return next((value for alias, value in parents if alias.client == named_by.client), None)


def _conflicts(programs: list[tuple[Alias, str]]) -> tuple[tuple[str, str], ...]:
    # Ids of queues and caches are not meant to agree with the others.
    if len(programs) < 2:
        return ()
    (kept, kept_id), *others = programs
    return tuple(
        (kept.source, other.source)
        for other, other_id in others
        if other_id != kept_id
        and other.client != kept.client
        and other.tier is not Tier.FLOW
        # A vendor's session may be wider than a program, or one of its proxy's.
        and other.source != VENDOR_SESSION
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
    # A header's bytes arrive as Latin-1; this gives an id the same hash in a header and in a body.
    try:
        octets = text.encode("latin-1")
        octets.decode()
    except UnicodeError:
        return text.encode()
    return octets
