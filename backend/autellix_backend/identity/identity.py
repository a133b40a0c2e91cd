"""The identity of a call: the program, thread and session that its headers and body name.

`aliases` reads the names; this module turns them into one identity. Sub-agents become threads of their root
program. A call that names no program is recognised by the ids of the answers that it continues, then by its
transcript, or becomes a program of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from autellix_backend.core.hints import Hints
from autellix_backend.identity.aliases import (
    ALIASES,
    ANONYMOUS,
    ANSWER_ID,
    CONTENT_CHAIN,
    FOREIGN_TOKEN,
    OUTSIDE,
    PROGRAM_HEADER,
    VENDOR_SESSION,
    AliasField,
    Fields,
    ResolvedAliases,
    Tier,
    resolve_aliases,
)
from autellix_backend.identity.answer_ids import previous_response, transcript_ids
from autellix_backend.identity.errors import InvalidIdentityError
from autellix_backend.identity.hints import NOTHING_STATED, StatedHints, read_hints
from autellix_backend.identity.implicit import ImplicitArrival, place
from autellix_backend.identity.lineage import Lineage
from autellix_backend.identity.scoped_ids import scoped
from autellix_backend.identity.transcripts import Reading, Transcript, TranscriptChain
from autellix_backend.raw_json import RawObjects
from autellix_backend.stores.base import Adoption, AnswerSource, ImplicitCall, ProgramStore, without_implicit
from autellix_wire.flags import IMPLICIT
from autellix_wire.headers import (
    CALL_ID,
    FLAGS,
    INTERCEPTIONS,
    PARENT_IDS,
    PROGRAM_NAME,
    SESSION_ID,
    THREAD_NAME,
)
from autellix_wire.ids import InvalidIdError, check_id, parse_interceptions, parse_parents

MAIN_THREAD = "0"
_PARENTS, _TOOLS = PARENT_IDS.lower(), INTERCEPTIONS.lower()

_MADE_UP = (ANONYMOUS, FOREIGN_TOKEN, CONTENT_CHAIN, OUTSIDE)
"""Sources of a program that has the call's own id, unless the call joins that of another one."""
_CLIENTS_WITH_PARENTS = frozenset(alias.client for alias in ALIASES if alias.field is AliasField.PARENT)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The ids and hints of one call."""

    session: str | None
    program: str
    name: str | None
    thread: str
    thread_name: str | None = None
    call: str
    parents: tuple[str, ...] | None
    flags: tuple[str, ...]
    is_final: bool
    source: str
    """Where the program's id came from: one of `aliases.PROGRAM_SOURCES`."""
    stated: StatedHints = NOTHING_STATED
    """What the client says of the program, from this call on, and where."""
    interceptions: tuple[tuple[str, float], ...] = ()
    """Tools that the client ran since the calls this one depends on, and their seconds."""
    owner: str | None = None
    """The client that must own the program, where identity is strict."""

    aliases: ResolvedAliases
    transcript: Transcript | None = None
    """Its transcript, where that identifies the program."""
    engine: str | None = None
    """The engine that made the response which it continues, and may have stored it, or has its context."""
    implicit: ImplicitCall | None = None
    """What later calls have to know of it, if it is outside of all programs of its client."""
    adopts: Adoption | None = None
    """The call that its program takes over with it."""
    is_identified: bool = True
    """Whether anything identified its program: a name, or what it continues or depends on.

    Else its program is this one call, as far as is known, or all that a process calls outside of programs.
    """

    def scoped_to(self, tenant: str) -> Identity:
        """Return the identity with the tenant's name in the ids of its program and session."""
        if not tenant:
            return self
        session = None if self.session is None else scoped(tenant, self.session)
        return replace(self, session=session, program=scoped(tenant, self.program))

    @property
    def hints(self) -> Hints:
        """What the client says of the program, from this call on."""
        return self.stated.record

    @property
    def is_anonymous(self) -> bool:
        """Whether the program is this one call, because no trusted name was sent."""
        return self.source in (ANONYMOUS, FOREIGN_TOKEN)

    @property
    def is_alone(self) -> bool:
        """Whether nothing said where the call belongs but its process: a program by itself to engines."""
        return self.implicit is not None and self.implicit.is_loose

    def is_last(self, *, offers_tools: bool) -> bool:
        """Return whether its program in an engine ends with it, as far as is known before its answer."""
        return self.is_final or self.is_alone or (self.is_anonymous and not offers_tools)

    def ends_program(self, *, offers_tools: bool, has_tool_calls: bool) -> bool:
        """Return whether the program ends with the call: what tool calls return comes with another one."""
        return self.is_final or (self.is_anonymous and not (offers_tools and has_tool_calls))

    def answer_source(self, engine: str, *, calls_tools: bool) -> AnswerSource:
        """Return where the answer of the call comes from, for the calls that continue it."""
        implicit = self.implicit and replace(self.implicit, calls_tools=calls_tools)
        return AnswerSource(self.program, engine, implicit)


def read_identity(headers: Mapping[str, str], fields: Fields, new_id: str) -> Identity:
    """Read the identity that a request names, before sub-agents and transcripts are resolved.

    `headers` has lower-case names; `new_id` is the id of a call that has none.

    Raises:
        InvalidIdentityError: if a header of ours is malformed.
    """
    try:
        objects = RawObjects(fields)
        aliases = resolve_aliases(headers, fields, objects)
        call = _read(headers, CALL_ID) or new_id
        return Identity(
            session=_read(headers, SESSION_ID),
            program=aliases.program or call,
            name=_read(headers, PROGRAM_NAME),
            thread=aliases.thread or aliases.agent or MAIN_THREAD,
            thread_name=_read(headers, THREAD_NAME),
            call=call,
            parents=parse_parents(headers[_PARENTS], PARENT_IDS) if _PARENTS in headers else None,
            flags=_flags(headers),
            is_final=aliases.final is not None,
            source=ANONYMOUS if aliases.named_by is None else aliases.named_by.source,
            stated=read_hints(headers, fields, objects),
            interceptions=parse_interceptions(headers[_TOOLS], INTERCEPTIONS) if _TOOLS in headers else (),
            aliases=aliases,
        )
    except InvalidIdError as error:
        raise InvalidIdentityError(str(error), error.field) from error


class IdentityResolver:
    """Resolves calls to root programs and threads, by the answers in the store, and what it remembers itself.

    It remembers the lineages and transcripts of admitted calls only, so that a refused one leaves no trace.
    """

    def __init__(
        self,
        store: ProgramStore,
        *,
        clock: Callable[[], float],
        idle_s: float,
        secret: str | None = None,
        on_read: Callable[[Identity], None] | None = None,
    ) -> None:
        """Know no call yet.

        Args:
            store: Where the answers of calls are.
            clock: Monotonic seconds.
            idle_s: How long a program may idle until it is forgotten.
            secret: A secret of those that share the store; None for a random one.
            on_read: Called with each call as it is named.
        """
        self._store = store
        self._clock = clock
        self._on_read = on_read
        self.trusts_transcripts = True
        """Whether a transcript alone may say where a call belongs: not if others serve the same clients, who
        may have had the same transcript of another program."""
        self._lineage = Lineage(ttl_s=idle_s)
        self._chain = TranscriptChain(ttl_s=idle_s, secret=_chain_secret(secret))

    async def resolve(
        self, identity: Identity, fields: Fields, tenant: str, *, offers_tools: bool = False
    ) -> Identity:
        """Return an identity, scoped to its tenant, with its final program and thread.

        `tenant` is its name, empty without tenants: they share no lineages, no answers and no transcripts.
        `offers_tools` says whether another call may bring what its tools return.
        """
        if self._on_read is not None:
            self._on_read(identity)
        found = await self._resolve(identity, fields, tenant, offers_tools=offers_tools)
        is_made_up = found.source in _MADE_UP and found.program == scoped(tenant, found.call)
        return replace(found, is_identified=False) if is_made_up or found.is_alone else found

    async def _resolve(
        self, identity: Identity, fields: Fields, tenant: str, *, offers_tools: bool
    ) -> Identity:
        if identity.source == FOREIGN_TOKEN:
            return identity
        if IMPLICIT in identity.flags and identity.source == PROGRAM_HEADER:
            return await self._resolve_implicit(identity, fields, tenant, offers_tools=offers_tools)
        named, response = identity.aliases.program, None
        if "previous_response_id" in fields:
            response = previous_response(fields)
        continued = transcript_ids(fields) if named is None else ()
        if response is not None:
            continued = (response, *continued)
        source: AnswerSource | None = None
        if continued:
            source = await self._store.find_answer(tenant, continued, self._clock())
        if named is not None:
            identity = self._resolve_named(identity, named, tenant)
        elif source is not None:
            identity = replace(identity, program=source.program_id, source=ANSWER_ID)
        else:
            identity = self._resolve_unnamed(identity, fields, tenant)
        return identity if response is None or source is None else replace(identity, engine=source.engine)

    def remember(self, identity: Identity, tenant: str) -> None:
        """Remember the lineage and the transcript of a resolved call that was admitted."""
        if identity.transcript is not None:
            self._chain.remember(tenant, identity.transcript, self._clock())
        aliases, named = identity.aliases, identity.aliases.program
        if named is None or identity.source == FOREIGN_TOKEN or not _has_parents(aliases):
            return
        if aliases.final is not None:
            self._lineage.forget(tenant, named)
        elif aliases.parent is not None:
            self._lineage.link(tenant, named, aliases.parent, self._clock())

    def expire(self, now: float) -> None:
        """Drop lineages and transcripts that have not been used for as long as a program may idle."""
        self._lineage.expire(now)
        self._chain.expire(now)

    async def _resolve_implicit(
        self, identity: Identity, fields: Fields, tenant: str, *, offers_tools: bool
    ) -> Identity:
        """Return the identity of a call that its client made outside of any program; see `implicit`."""
        now = self._clock()
        known = await self._store.find_calls(tenant, identity.parents or (), now)
        parents = {call: source for call, source in known.items() if _is_open_to(source, identity)}
        response = previous_response(fields)
        ids = transcript_ids(fields) if response is None else (response, *transcript_ids(fields))
        continued = await self._store.find_answer(tenant, ids, now) if ids else None
        if continued is not None and not _is_open_to(continued, identity):
            continued = None
        reading, extended, origin = None, None, ANSWER_ID
        if continued is None and (reading := self._chain.read(tenant, fields, needs_answer=False)):
            origin = CONTENT_CHAIN
            continued = _continued(reading, parents)
            # What it depends on says more than a transcript, which other programs may have sent word by word.
            is_open = self.trusts_transcripts and identity.owner is None
            if continued is None and not parents and is_open:
                extended = self._chain.program_of(tenant, reading, now)
        arrival = ImplicitArrival(
            call_id=identity.call,
            program=identity.program,
            thread=identity.thread,
            parents=identity.parents,
            owner=identity.owner,
            transcript=None if reading is None else reading.whole.hex(),
            offers_tools=offers_tools,
        )
        found = place(arrival, tenant, continued=continued, extended=extended, parents=parents)
        is_loose = found.call.is_loose
        if continued is None and extended is None:
            origin = PROGRAM_HEADER if is_loose else OUTSIDE
        is_stored = continued is not None and response is not None
        return replace(
            identity,
            program=found.program,
            thread=found.thread,
            parents=found.parents,
            flags=identity.flags if is_loose else without_implicit(identity.flags),
            source=origin,
            implicit=found.call,
            adopts=found.adopts,
            engine=continued.engine if continued is not None and is_stored else found.engine,
            transcript=Transcript(reading.whole, found.program) if reading and not is_loose else None,
        )

    def _resolve_named(self, identity: Identity, named: str, tenant: str) -> Identity:
        aliases = identity.aliases
        root, agent = self._root_and_agent(aliases, named, tenant)
        if agent == root:
            # The main agent, with or without an id of its own: most calls, and their identity is complete.
            thread = aliases.thread or MAIN_THREAD
            return identity if thread == identity.thread else replace(identity, thread=thread)
        # A sub-agent's end is not its program's, unless our own header says so.
        is_final = aliases.final is not None and aliases.final.tier is Tier.OWN
        thread = aliases.thread or agent
        return replace(identity, program=scoped(tenant, root), thread=thread, is_final=is_final)

    def _root_and_agent(self, aliases: ResolvedAliases, named: str, tenant: str) -> tuple[str, str]:
        # They are the same for a main agent.
        if _has_parents(aliases):
            root = self._lineage.root(tenant, named, aliases.parent, self._clock())
            if root != named:
                return root, named
        return named, aliases.agent or named

    def _resolve_unnamed(self, identity: Identity, fields: Fields, tenant: str) -> Identity:
        if not self.trusts_transcripts:
            return identity
        found = self._chain.find(tenant, fields, identity.program, self._clock())
        if found is None:
            return identity
        return replace(identity, program=found.program, source=CONTENT_CHAIN, transcript=found)


def _chain_secret(secret: str | None) -> bytes | None:
    """Return the secret of the digests, which gateways of one process table share; None for a random one."""
    return None if secret is None else hashlib.sha256(f"transcripts\n{secret}".encode()).digest()


def _is_open_to(source: AnswerSource, identity: Identity) -> bool:
    """Return whether a call may be in the program of a known one: where identity is strict, its owner's."""
    call = source.implicit
    return identity.owner is None or (call is not None and call.owner == identity.owner)


def _continued(reading: Reading, parents: Mapping[str, AnswerSource]) -> AnswerSource | None:
    """Return the one of the calls that a call depends on whose transcript it extends."""
    prefixes = {prefix.hex() for prefix in reading.prefixes}
    calls = ((source, source.implicit) for source in parents.values())
    return next((source for source, call in calls if call and call.transcript in prefixes), None)


def _has_parents(aliases: ResolvedAliases) -> bool:
    """Return whether the program's client names the parents of its agents."""
    named_by = aliases.named_by
    return named_by is not None and (
        named_by.client in _CLIENTS_WITH_PARENTS or named_by.source == VENDOR_SESSION
    )


def _read(headers: Mapping[str, str], name: str) -> str | None:
    value = headers.get(name.lower())
    return None if value is None else check_id(value, name)


def _flags(headers: Mapping[str, str]) -> tuple[str, ...]:
    value = _read(headers, FLAGS)
    return tuple(flag.strip() for flag in value.split(",")) if value else ()
