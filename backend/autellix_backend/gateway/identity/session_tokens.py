"""Session tokens: the proof that a call's ids come from the client whose session they name.

A session has an owner: the API key that started it, or where the gateway has no keys, the client that knows a
proof which it made itself and sent along. The token names the owner and authenticates it and the session's id
by HMAC-SHA256 under the gateway's secret, so gateways that share `gateway.token_secret` accept each other's.

With `gateway.strict_identity` the store keeps the owner of each session and program: only the owner gets the
session's token, by starting the session again, and a call needs the token of a running session whose owner is
also its program's. Otherwise a call without a token is trusted, and one with a foreign token is anonymous:
a program of its own, which neither joins nor delays another.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from autellix_backend.gateway.errors import SessionTokenError
from autellix_backend.gateway.identity.aliases import FOREIGN_TOKEN
from autellix_backend.gateway.identity.identity import Identity
from autellix_backend.gateway.tenancy.tenants import Tenant, presented_key
from autellix_backend.stores.base import ProgramStore
from autellix_wire import SESSION_ID, SESSION_TOKEN

START_WINDOW_S = 2.0
"""How long before or after its session's start a call may lack the token."""
POLL_S = 0.1
"""How often a call that waits for its session asks whether that has started at another gateway."""
KNOWN_FOR_S = 1.0
"""How long a shared table's answer about a session holds: so long its token outlives it at other gateways."""
MAX_KNOWN = 10_000
SECRET_BYTES = 32
OWNER_BYTES = 12
VERSION = "v2"
ANYONE = "-"
"""The owner of sessions of clients without key and proof, where identity is not strict."""


class SessionTokens:
    """Issues session tokens and verifies them."""

    def __init__(
        self,
        secret: str | None,
        store: ProgramStore,
        *,
        is_strict: bool,
        has_keys: bool,
        clock: Callable[[], float],
        is_shared: bool = False,
        grace_s: float = 0.0,
    ) -> None:
        """Set the rules.

        Args:
            secret: What authenticates tokens; None makes one that lives as long as the process.
            store: Where sessions and their owners are.
            is_strict: Whether calls need a token.
            has_keys: Whether requests need an API key, which then is the owner of its sessions.
            clock: Monotonic seconds.
            is_shared: Whether a question to the store leaves this process.
            grace_s: How long after the start unknown sessions count as running: those of before a restart,
                until their clients' next heartbeats start them again.
        """
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(SECRET_BYTES)
        self._store = store
        self.is_strict = is_strict
        self._has_keys = has_keys
        self._clock = clock
        self._known_for_s = KNOWN_FOR_S if is_shared else 0.0
        self._known: dict[str, tuple[str, float]] = {}
        self._grace_end_s = clock() + grace_s
        self._ended: dict[str, None] = {}
        self._starts_s: dict[str, float] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def claim(self, session_id: str, headers: Mapping[str, str], proof: str | None) -> str:
        """Return the owner that a request to start a session speaks for; `headers` has lower-case names."""
        if self._has_keys:
            return _digest("key", presented_key(headers) or "")
        if proof:
            return _digest("proof", proof)
        token = headers.get(SESSION_TOKEN.lower())
        known = None if token is None else self._owner_in(token, session_id)
        if known is not None:
            return known
        # A client that proves nothing owns what it starts by the token alone.
        return _digest("none", secrets.token_hex(OWNER_BYTES)) if self.is_strict else ANYONE

    def mint(self, session_id: str, owner: str) -> str:
        """Return the token of an owner's session."""
        digest = hmac.digest(self._secret, f"{session_id}\n{owner}".encode(), hashlib.sha256)
        return f"{VERSION}.{owner}.{_text(digest)}"

    def note_start(self, session_id: str) -> None:
        """Note that a session has started, and let the calls go on that wait for it."""
        now = self._clock()
        self._ended.pop(session_id, None)
        self._starts_s = {name: at for name, at in self._starts_s.items() if now - at < START_WINDOW_S}
        self._starts_s[session_id] = now
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(None)

    def note_end(self, session_id: str) -> None:
        """Note that a session was ended: its token ends with it."""
        self._known.pop(session_id, None)
        self._starts_s.pop(session_id, None)
        if self._clock() < self._grace_end_s:
            self._ended[session_id] = None

    async def verify(self, identity: Identity, headers: Mapping[str, str], tenant: Tenant) -> Identity:
        """Return the identity that a tenant's call may use; `headers` has lower-case names.

        A client makes its own ids and starts its session in parallel to its first calls. In strict mode these
        calls have no token yet: they wait a moment for the session to start, and pass if it does.

        Raises:
            SessionTokenError: in strict mode, if the token is missing or is not that of the call's session.
        """
        token = headers.get(SESSION_TOKEN.lower())
        if self.is_strict:
            return replace(identity, owner=await self._prove(identity.session, token, headers))
        if token is None or (
            identity.session is not None and self._authentic_owner(token, identity.session, headers)
        ):
            return identity
        program = tenant.scoped(identity.call)
        return replace(identity, session=None, program=program, parents=None, source=FOREIGN_TOKEN)

    async def prove(self, headers: Mapping[str, str], tenant: Tenant) -> str:
        """Return the owner whose session a request names and proves, where identity is strict.

        Raises:
            SessionTokenError: if it does not.
        """
        session = headers.get(SESSION_ID.lower())
        token = headers.get(SESSION_TOKEN.lower(), "")
        return await self._prove(None if session is None else tenant.scoped(session), token, headers)

    def check(self, session_id: str, headers: Mapping[str, str]) -> None:
        """Check that a request about a session has its token, where identity is strict.

        Raises:
            SessionTokenError: if it has not.
        """
        if self.is_strict and not self._authentic_owner(
            headers.get(SESSION_TOKEN.lower(), ""), session_id, headers
        ):
            raise SessionTokenError("is not that of the session", can_retry=False)

    async def _prove(self, session_id: str | None, token: str | None, headers: Mapping[str, str]) -> str:
        if token is None:
            return await self._prove_start(session_id, headers)
        owner = None if session_id is None else self._authentic_owner(token, session_id, headers)
        if owner is None or session_id is None:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        running = await self._running_owner(session_id)
        if running is None and not self._may_be_running(session_id):
            if not await self._starts_in_time(session_id):
                raise SessionTokenError("is that of a session that has ended", can_retry=True)
            running = await self._running_owner(session_id)
        if running and running != owner:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        return owner

    async def _prove_start(self, session_id: str | None, headers: Mapping[str, str]) -> str:
        """Return the owner of a call without a token, if its session starts in time."""
        if session_id is not None and await self._starts_in_time(session_id):
            running = await self._running_owner(session_id)
            if running is not None and (not self._has_keys or running == self.claim(session_id, headers, "")):
                return running
        raise SessionTokenError("is missing", can_retry=session_id is not None)

    def _authentic_owner(self, token: str, session_id: str, headers: Mapping[str, str]) -> str | None:
        """Return the owner in a token that the gateway made for this session and this request's key."""
        owner = self._owner_in(token, session_id)
        is_bound = not self._has_keys or owner == self.claim(session_id, headers, None)
        return owner if is_bound else None

    def _owner_in(self, token: str, session_id: str) -> str | None:
        version, _, rest = token.strip().partition(".")
        owner = rest.partition(".")[0]
        # As bytes: compare_digest refuses text outside ASCII.
        is_ours = hmac.compare_digest(token.strip().encode(), self.mint(session_id, owner).encode())
        return owner if is_ours and version == VERSION else None

    async def _running_owner(self, session_id: str) -> str | None:
        """Return a running session's owner, None if it is not known to run."""
        now = self._clock()
        known = self._known.get(session_id)
        if known is not None and now < known[1]:
            return known[0]
        owner = await self._store.session_owner(session_id)
        self._known.pop(session_id, None)
        if owner is not None and self._known_for_s:
            self._known[session_id] = (owner, now + self._known_for_s)
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return owner

    def _may_be_running(self, session_id: str) -> bool:
        """Whether the store may have lost a session that runs, or cannot tell."""
        if self._store.failure() is not None:
            return True
        return self._clock() < self._grace_end_s and session_id not in self._ended

    async def _starts_in_time(self, session_id: str) -> bool:
        start_s = self._starts_s.get(session_id)
        if start_s is not None and self._clock() - start_s < START_WINDOW_S:
            return True
        # A session that runs already started too long ago.
        if await self._store.session_owner(session_id) is not None:
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(START_WINDOW_S):
                while not future.done():
                    await asyncio.wait((future,), timeout=POLL_S if self._known_for_s else None)
                    if await self._store.session_owner(session_id) is not None:
                        return True
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(session_id) is waiting:
                del self._waiting[session_id]
        return True


def _digest(kind: str, value: str) -> str:
    return _text(hashlib.sha256(f"{kind}\n{value}".encode()).digest()[:OWNER_BYTES])


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
