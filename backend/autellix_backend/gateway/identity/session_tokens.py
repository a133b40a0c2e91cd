"""Session tokens: the proof that a call's ids come from the client whose session they name.

A token is the HMAC-SHA256 of the session's id under the gateway's secret, so the gateway stores none, and
gateways that share `gateway.token_secret` accept each other's. With `gateway.strict_identity` a call that
names a program needs the token of its session; otherwise a call without one is trusted, and one with a
foreign token is anonymous: a program of its own, which neither joins nor delays another.
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
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_wire import SESSION_TOKEN

START_WINDOW_S = 2.0
"""How long before or after its session's start a call may lack the token."""
SECRET_BYTES = 32
VERSION = "v1."


class SessionTokens:
    """Issues session tokens and verifies them."""

    def __init__(self, secret: str | None, *, is_strict: bool, clock: Callable[[], float]) -> None:
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(SECRET_BYTES)
        self._is_strict = is_strict
        self._clock = clock
        self._starts_s: dict[str, float] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def mint(self, session_id: str, *, is_new: bool) -> str:
        """Return the token of a session that starts; `is_new` if it was not running."""
        if is_new:
            self._note_start(session_id)
        digest = hmac.digest(self._secret, session_id.encode(), hashlib.sha256)
        return VERSION + base64.urlsafe_b64encode(digest).decode().rstrip("=")

    async def verify(self, identity: Identity, headers: Mapping[str, str], tenant: Tenant) -> Identity:
        """Return the identity that a tenant's call may use; `headers` has lower-case names.

        A client makes its own ids and starts its session in parallel to its first calls. In strict mode these
        calls have no token yet: they wait a moment for the session to start, and pass if it does.

        Raises:
            SessionTokenError: in strict mode, if the token is missing or is not that of the call's session.
        """
        token = headers.get(SESSION_TOKEN.lower())
        if token is None:
            if not self._is_strict:
                return identity
            if identity.session is not None and await self._starts_in_time(identity.session):
                return identity
            raise SessionTokenError("is missing", can_retry=identity.session is not None)
        if identity.session is not None and self._matches(token.strip(), identity.session):
            return identity
        if self._is_strict:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        program = tenant.scoped(identity.call)
        return replace(identity, session=None, program=program, parents=None, source=FOREIGN_TOKEN)

    def _matches(self, token: str, session_id: str) -> bool:
        # As bytes: compare_digest refuses text outside ASCII.
        return hmac.compare_digest(token.encode(), self.mint(session_id, is_new=False).encode())

    def _note_start(self, session_id: str) -> None:
        now = self._clock()
        self._starts_s = {name: at for name, at in self._starts_s.items() if now - at < START_WINDOW_S}
        self._starts_s[session_id] = now
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(None)

    async def _starts_in_time(self, session_id: str) -> bool:
        start_s = self._starts_s.get(session_id)
        if start_s is not None and self._clock() - start_s < START_WINDOW_S:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, set())
        waiting.add(future)
        try:
            await asyncio.wait_for(future, START_WINDOW_S)
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(session_id) is waiting:
                del self._waiting[session_id]
        return True
