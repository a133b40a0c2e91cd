"""Session tokens: the proof that a call's ids come from the client whose session they name.

A session has an owner: the API key that started it, or where the gateway has no keys, the client that knows a
proof which it made itself. Our client's requests bring that proof along. For others the start of a session
answers a token: it names the owner and authenticates it and the session's id by HMAC-SHA256 under the
gateway's secret, so gateways that share `gateway.token_secret` accept each other's.

With `gateway.strict_identity` the store keeps the owner of each session and program: only the owner gets the
session's token, by starting the session again, and a call needs the proof or the token of its session's
owner, who is also its program's. Otherwise a call without a token is trusted, and one with a foreign token is
anonymous: a program of its own, which neither joins nor delays another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from msgspec.structs import replace

from autellix_backend.gateway.errors import SessionTokenError
from autellix_backend.gateway.sessions.running_sessions import RunningSessions
from autellix_backend.gateway.tenancy.tenants import Tenant, presented_key
from autellix_backend.identity.aliases import FOREIGN_TOKEN
from autellix_backend.identity.identity import Identity
from autellix_wire.headers import SESSION_ID, SESSION_PROOF, SESSION_TOKEN

PROOF_HEADER = SESSION_PROOF.lower()
TOKEN_HEADER = SESSION_TOKEN.lower()
SECRET_BYTES = 32
OWNER_BYTES = 12
VERSION = "v2"
ANYONE = "-"
"""The owner of sessions of clients without key and proof, where identity is not strict."""


class SessionTokens:
    """Issues session tokens and verifies them."""

    def __init__(
        self, secret: str | None, running: RunningSessions, *, is_strict: bool, has_keys: bool
    ) -> None:
        """Set the rules.

        Args:
            secret: Authenticates tokens; None makes a random one for this process.
            running: The running sessions and their owners.
            is_strict: Whether calls need a token.
            has_keys: Whether requests need an API key, which then is the owner of its sessions.
        """
        self._secret = secret.encode() if secret is not None else secrets.token_bytes(SECRET_BYTES)
        self.running = running
        self.is_strict = is_strict
        self._has_keys = has_keys

    def claim(self, session_id: str, headers: Mapping[str, str], proof: str | None) -> str:
        """Return the owner that a request to start a session speaks for; `headers` has lower-case names."""
        if self._has_keys:
            return _digest("key", presented_key(headers) or "")
        if proof:
            return _digest("proof", proof)
        token = headers.get(TOKEN_HEADER)
        known = None if token is None else self._owner_in(token, session_id)
        if known is not None:
            return known
        # A client that proves nothing owns what it starts by the token alone.
        return _digest("none", secrets.token_hex(OWNER_BYTES)) if self.is_strict else ANYONE

    def mint(self, session_id: str, owner: str) -> str:
        """Return the token of an owner's session."""
        digest = hmac.digest(self._secret, f"{session_id}\n{owner}".encode(), hashlib.sha256)
        return f"{VERSION}.{owner}.{_text(digest)}"

    async def verify(self, identity: Identity, headers: Mapping[str, str], tenant: Tenant) -> Identity:
        """Return the identity that a tenant's call may use; `headers` has lower-case names.

        A client makes its own ids and starts its session in parallel to its first calls. In strict mode these
        calls have no token yet: they wait a moment for the session to start, and pass if it does.

        Raises:
            SessionTokenError: in strict mode, if the token is missing or is not that of the call's session.
        """
        token = headers.get(TOKEN_HEADER)
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
        token = headers.get(TOKEN_HEADER, "")
        return await self._prove(None if session is None else tenant.scoped(session), token, headers)

    async def check(self, session_id: str, headers: Mapping[str, str]) -> None:
        """Check that a request about a session is its owner's, where identity is strict.

        Raises:
            SessionTokenError: if it does not prove it.
        """
        if not self.is_strict:
            return
        token = headers.get(TOKEN_HEADER)
        if token is None and PROOF_HEADER in headers:
            await self._prove_owner(session_id, headers)
        elif not self._authentic_owner(token or "", session_id, headers):
            raise SessionTokenError("is not that of the session", can_retry=False)

    async def _prove_owner(self, session_id: str, headers: Mapping[str, str]) -> str:
        """Return the owner that a request with a proof speaks for; the session may not be another's."""
        owner = self.claim(session_id, headers, headers[PROOF_HEADER])
        running = await self.running.owner(session_id)
        if running and running != owner:
            # A client whose key has changed makes another session.
            raise SessionTokenError("is missing, and the session is another client's", can_retry=True)
        return owner

    async def _prove(self, session_id: str | None, token: str | None, headers: Mapping[str, str]) -> str:
        if not token and session_id is not None and PROOF_HEADER in headers:
            return await self._prove_owner(session_id, headers)
        if token is None:
            return await self._prove_start(session_id, headers)
        owner = None if session_id is None else self._authentic_owner(token, session_id, headers)
        if owner is None or session_id is None:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        running = await self.running.owner(session_id)
        if running is None and not self.running.may_be_lost(session_id):
            if not await self.running.starts_in_time(session_id):
                raise SessionTokenError("is that of a session that has ended", can_retry=True)
            running = await self.running.owner(session_id)
        if running and running != owner:
            raise SessionTokenError("is not that of the call's session", can_retry=False)
        return owner

    async def _prove_start(self, session_id: str | None, headers: Mapping[str, str]) -> str:
        """Return the owner of a call without a token, if its session starts in time."""
        if session_id is not None and await self.running.starts_in_time(session_id):
            running = await self.running.owner(session_id)
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


def _digest(kind: str, value: str) -> str:
    return _text(hashlib.sha256(f"{kind}\n{value}".encode()).digest()[:OWNER_BYTES])


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
