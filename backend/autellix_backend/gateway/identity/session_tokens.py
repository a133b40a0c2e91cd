"""Session tokens: what proves that the ids of a call come from the client whose session they name.

A token is the HMAC-SHA256 of the session's id under the gateway's secret, so nothing has to be stored, and
gateways that share `gateway.token_secret` accept each other's. With `gateway.strict_identity` a call that
names a program needs the token of its session; otherwise a call without one is believed, and one with a
foreign token counts as anonymous: a program of its own, which neither joins nor delays another.
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
from autellix_backend.gateway.identity.identity import Identity
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_wire import SESSION_TOKEN

BIRTH_S = 2.0
"""How far a session's start may lie from a call of it that has no token yet."""
SECRET_BYTES = 32
VERSION = "v1."


class SessionTokens:
    """Makes tokens and checks them."""

    def __init__(self, secret: str | None, *, is_strict: bool, clock: Callable[[], float]) -> None:
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(SECRET_BYTES)
        self._is_strict = is_strict
        self._clock = clock
        self._births: dict[str, float] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def mint(self, session_id: str, *, is_new: bool) -> str:
        """Return the token of a session that is being started; `is_new` if it was not running."""
        if is_new:
            self._note_birth(session_id)
        digest = hmac.digest(self._secret, session_id.encode(), hashlib.sha256)
        return VERSION + base64.urlsafe_b64encode(digest).decode().rstrip("=")

    async def admit(self, identity: Identity, headers: Mapping[str, str], tenant: Tenant) -> Identity:
        """Return the identity that a call of a tenant may have; `headers` has lower-case names.

        A client makes its ids itself and starts its session beside the first calls, so in strict mode these
        have no token yet: they wait until the session begins, for a moment, and are admitted if it does.

        Raises:
            SessionTokenError: in strict mode, if the token is missing or is not that of the call's session.
        """
        token = headers.get(SESSION_TOKEN.lower())
        if token is None:
            if not self._is_strict:
                return identity
            if identity.session is not None and await self._is_being_born(identity.session):
                return identity
            raise SessionTokenError("is missing", can_retry=identity.session is not None)
        if identity.session is not None and self._matches(token.strip(), identity.session):
            return identity
        if self._is_strict:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        alone = tenant.scoped(identity.call)
        return replace(identity, session=None, program=alone, parents=None, source="foreign-token")

    def _matches(self, token: str, session_id: str) -> bool:
        # As bytes: compare_digest refuses text outside ASCII.
        return hmac.compare_digest(token.encode(), self.mint(session_id, is_new=False).encode())

    def _note_birth(self, session_id: str) -> None:
        now = self._clock()
        self._births = {name: at for name, at in self._births.items() if now - at < BIRTH_S}
        self._births[session_id] = now
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(None)

    async def _is_being_born(self, session_id: str) -> bool:
        born = self._births.get(session_id)
        if born is not None and self._clock() - born < BIRTH_S:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, set())
        waiting.add(future)
        try:
            await asyncio.wait_for(future, BIRTH_S)
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(session_id) is waiting:
                del self._waiting[session_id]
        return True
