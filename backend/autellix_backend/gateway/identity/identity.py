"""Who is calling: the program, thread and call that a request's headers and body name.

The table of names is in `aliases`; this module turns what it finds into one identity: sub-agents become
threads of their root program (or programs of their own), and traffic that names nothing is recognised by its
transcript, or is one program per request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from autellix_backend.core.estimate import Hint
from autellix_backend.gateway.errors import InvalidRequestError
from autellix_backend.gateway.identity.aliases import (
    ALIASES,
    ANONYMOUS,
    CONTENT_CHAIN,
    FOREIGN_TOKEN,
    Claim,
    Claims,
    Fields,
    Gives,
    Tier,
    find_claims,
    usable_id,
)
from autellix_backend.gateway.identity.lineage import Lineage
from autellix_backend.gateway.identity.transcripts import TranscriptChain
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.settings import GatewaySettings
from autellix_wire import (
    CALL_ID,
    EXPECTED_CALLS,
    EXPECTED_TOKENS,
    FLAGS,
    INTERCEPTIONS,
    PARENT_IDS,
    PROGRAM_NAME,
    SESSION_ID,
    InvalidIdError,
    check_id,
    parse_interceptions,
    parse_parents,
)

MAIN_THREAD = "0"
MAX_EXPECTED_DIGITS = 12

_CLIENTS_WITH_PARENTS = frozenset(alias.client for alias in ALIASES if alias.gives is Gives.PARENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one request says about itself; `source` tells where the program's id came from."""

    session: str | None
    program: str
    name: str | None
    thread: str
    call: str
    parents: tuple[str, ...] | None
    flags: tuple[str, ...]
    is_final: bool
    source: str
    """One of `aliases.PROGRAM_SOURCES`."""
    hint: Hint | None = None
    """What the client expects of the program from this call on."""
    interceptions: tuple[tuple[str, float], ...] = ()
    """Tools that the client ran since the calls this one depends on, and their seconds."""

    claims: Claims = field(compare=False, repr=False)
    """What the request said of itself by any name."""

    def under(self, tenant: Tenant) -> Identity:
        """Return the identity with the ids that the backend knows this tenant's program and session by."""
        if not tenant.name:
            return self
        session = None if self.session is None else tenant.scoped(self.session)
        return replace(self, session=session, program=tenant.scoped(self.program))

    @property
    def is_anonymous(self) -> bool:
        """Say whether the program is this one request, because nothing named it that is to be believed."""
        return self.source in (ANONYMOUS, FOREIGN_TOKEN)


def read_identity(headers: Mapping[str, str], fields: Fields, new_id: Callable[[], str]) -> Identity:
    """Read what a request says of itself; its place among sub-agents and transcripts is still to be found.

    Args:
        headers: Its headers, with lower-case names.
        fields: Its body.
        new_id: Makes an id for a call that has none.

    Raises:
        InvalidRequestError: if a header of ours is malformed; `param` names it.
    """
    try:
        return _read_identity(headers, fields, new_id)
    except InvalidIdError as error:
        raise InvalidRequestError(str(error), param=error.field) from error


def _read_identity(headers: Mapping[str, str], fields: Fields, new_id: Callable[[], str]) -> Identity:
    claims = find_claims(headers, fields)
    call = _read(headers, CALL_ID) or new_id()
    named = claims.program
    return Identity(
        session=_read(headers, SESSION_ID),
        program=call if named is None else named.value,
        name=_read(headers, PROGRAM_NAME),
        thread=claims.thread or claims.agent or MAIN_THREAD,
        call=call,
        parents=parse_parents(headers.get(PARENT_IDS.lower()), PARENT_IDS),
        flags=_flags(headers),
        is_final=claims.final is not None,
        source=ANONYMOUS if named is None else named.alias.source,
        hint=_hint(headers),
        interceptions=parse_interceptions(headers.get(INTERCEPTIONS.lower()), INTERCEPTIONS),
        claims=claims,
    )


class Placement:
    """Finds the place of a call: its root program and thread, by the lineages and transcripts it remembers.

    Only calls that were admitted come here, so that a refused one leaves no trace.
    """

    def __init__(
        self, settings: GatewaySettings, metrics: GatewayMetrics, *, clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._has_threads = settings.subagents == "thread"
        self._lineage = Lineage(ttl_s=settings.program_idle_s)
        self._chain = TranscriptChain(ttl_s=settings.program_idle_s) if settings.content_chain else None

    def place(self, identity: Identity, fields: Fields, tenant: Tenant) -> Identity:
        """Return the identity with its program and thread.

        Args:
            identity: What the request said of itself, under its tenant.
            fields: Its body.
            tenant: Whose it is; what is remembered of one tenant is never used for another.
        """
        self._count(identity.claims)
        if identity.source == FOREIGN_TOKEN:
            return identity
        if identity.claims.program is None:
            return self._place_unnamed(identity, fields, tenant)
        return self._place_named(identity, identity.claims, identity.claims.program, tenant)

    def expire(self, now: float) -> None:
        """Forget lineages and transcripts that have not been used for as long as a program may idle."""
        self._lineage.expire(now)
        if self._chain is not None:
            self._chain.expire(now)

    def _count(self, claims: Claims) -> None:
        for kept, dropped in claims.conflicts:
            self._metrics.identity_conflicts.labels(kept, dropped).inc()
        for source in claims.malformed:
            self._metrics.identity_malformed.labels(source).inc()

    def _place_named(self, identity: Identity, claims: Claims, named: Claim, tenant: Tenant) -> Identity:
        root, agent = self._family(claims, named, tenant)
        if agent == root:
            # The main agent, with or without an id of its own; most calls are just this and stay as they are.
            thread = claims.thread or MAIN_THREAD
            return identity if thread == identity.thread else replace(identity, thread=thread)
        if not self._has_threads:
            program = tenant.scoped(_joined(root, agent))
            return replace(identity, program=program, thread=claims.thread or MAIN_THREAD)
        # A sub-agent's end is not its program's, unless our own header says so.
        is_final = claims.final is not None and claims.final.tier is Tier.OWN
        thread = claims.thread or agent
        return replace(identity, program=tenant.scoped(root), thread=thread, is_final=is_final)

    def _family(self, claims: Claims, named: Claim, tenant: Tenant) -> tuple[str, str]:
        """Return the root program and the agent in it that calls; they are the same for a main agent."""
        if self._has_threads and named.alias.client in _CLIENTS_WITH_PARENTS:
            root = self._lineage.root(tenant.name, named.value, claims.parent, self._clock())
            if claims.final is not None:
                self._lineage.forget(tenant.name, named.value)
            if root != named.value:
                return root, named.value
        return named.value, claims.agent or named.value

    def _place_unnamed(self, identity: Identity, fields: Fields, tenant: Tenant) -> Identity:
        if self._chain is None:
            return identity
        program = self._chain.join(tenant.name, fields, identity.program, self._clock())
        return identity if program is None else replace(identity, program=program, source=CONTENT_CHAIN)


def _joined(program: str, agent: str) -> str:
    """Name a sub-agent's own program; agents of different programs may have the same id."""
    joined = usable_id(f"{program}/{agent}")
    assert joined is not None, "neither id is empty"
    return joined


def _read(headers: Mapping[str, str], name: str) -> str | None:
    value = headers.get(name.lower())
    return None if value is None else check_id(value, name)


def _flags(headers: Mapping[str, str]) -> tuple[str, ...]:
    value = _read(headers, FLAGS)
    return tuple(flag.strip() for flag in value.split(",")) if value else ()


def _hint(headers: Mapping[str, str]) -> Hint | None:
    calls, tokens = _expected(headers, EXPECTED_CALLS), _expected(headers, EXPECTED_TOKENS)
    return None if calls is None and tokens is None else Hint(calls=calls, tokens=tokens)


def _expected(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name.lower())
    if value is None:
        return None
    text = value.strip()
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= MAX_EXPECTED_DIGITS and int(text)):
        raise InvalidRequestError(f"{name} is {value!r}; expected a whole number above zero", param=name)
    return float(text)
