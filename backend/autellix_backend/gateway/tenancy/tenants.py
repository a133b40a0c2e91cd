"""Who may come in: tenants, known by the keys of their clients, and the names that keep them apart.

Keys are kept as SHA-256 digests. A slow, salted hash protects passwords, which people choose and which can
therefore be guessed; a key holds 256 random bits, which nobody can guess at any speed, and it is checked at
each call. A presented key is compared with all known ones in a time that says nothing about them.

Within the backend an id of a tenant has the tenant's name before it (`research/run-7`). Names hold no slash,
so no two tenants can share an id, whatever their clients choose.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from autellix_backend.gateway.errors import AdminOnlyError, InvalidKeyError
from autellix_backend.settings import TenantLimits

KEY_PREFIX = "sk-autellix-"
KEY_BYTES = 32
DIGEST_PREFIX = "sha256:"
SEPARATOR = "/"

_SCOPE_KEY = "autellix.tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant; the one of an open door has no name, and its ids stay as they are."""

    name: str = ""
    weight: float = 1.0
    is_admin: bool = False
    """Whether it sees what is not its own: other tenants' programs, engines, settings and metrics."""
    limits: TenantLimits = field(default_factory=TenantLimits)

    def scoped(self, own_id: str) -> str:
        """Return the id that the backend knows a client's id by."""
        return f"{self.name}{SEPARATOR}{own_id}" if self.name else own_id

    def owns(self, scoped_id: str) -> bool:
        """Say whether an id of the backend is this tenant's."""
        return not self.name or scoped_id.startswith(self.name + SEPARATOR)

    @property
    def visible_prefix(self) -> str:
        """Return what the ids begin with that the tenant may see: nothing common, for an admin."""
        return "" if self.is_admin or not self.name else self.name + SEPARATOR

    def shown(self, scoped_id: str) -> str:
        """Return an id of the backend as the tenant is to see it: others' ids, for an admin, in full."""
        return scoped_id.removeprefix(self.name + SEPARATOR) if self.name else scoped_id

    def candidates(self, shown_id: str) -> tuple[str, ...]:
        """Return what an id that the tenant asks for may stand for, its own id first."""
        own = self.scoped(shown_id)
        return (own, shown_id) if self.is_admin and self.name else (own,)

    def check_admin(self, what: str) -> None:
        """Refuse who is no admin.

        Raises:
            AdminOnlyError: naming what was asked for.
        """
        if not self.is_admin:
            raise AdminOnlyError(what)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A tenant and the digests of its keys."""

    tenant: Tenant
    digests: tuple[bytes, ...]


class Tenants:
    """The tenants in force."""

    def __init__(
        self,
        holders: tuple[KeyHolder, ...] = (),
        *,
        open_tenant: Tenant | None = None,
        read: Callable[[], tuple[KeyHolder, ...]] | None = None,
    ) -> None:
        """Take the tenants.

        Args:
            holders: Who may come in.
            open_tenant: Who everybody is, if the door is open; then nobody needs a key.
            read: Reads the tenants anew; None if they cannot change.
        """
        self._holders = holders
        self._open_tenant = open_tenant
        self._read = read

    @property
    def is_open(self) -> bool:
        """Say whether everybody may come in."""
        return self._open_tenant is not None

    def reload(self) -> None:
        """Read the tenants anew; calls that are running keep what they began with.

        Raises:
            SettingsError: if they cannot be read; then nothing changes.
        """
        if self._read is not None:
            self._holders = self._read()

    def admit(self, headers: Mapping[str, str]) -> Tenant:
        """Return whose key a request shows; `headers` has lower-case names.

        Raises:
            InvalidKeyError: if it shows none, or one that nobody has.
        """
        if self._open_tenant is not None:
            return self._open_tenant
        key = _presented_key(headers)
        if key is None:
            raise InvalidKeyError("is missing")
        digest = _digest(key)
        found: Tenant | None = None
        for holder in self._holders:
            for known in holder.digests:
                # To the end, even if it is found: the time must not tell where.
                if hmac.compare_digest(digest, known):
                    found = holder.tenant
        if found is None:
            raise InvalidKeyError("is not known")
        return found

    def of(self, scope: Mapping[str, Any]) -> Tenant:
        """Return the tenant of a request that the door has let in."""
        if self._open_tenant is not None:
            return self._open_tenant
        tenant: Tenant = scope[_SCOPE_KEY]
        return tenant


def mark(scope: MutableMapping[str, Any], tenant: Tenant) -> None:
    """Note on a request whose it is."""
    scope[_SCOPE_KEY] = tenant


def new_key() -> str:
    """Return a fresh key: 256 random bits behind a prefix that secret scanners can look for."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_line(key: str) -> str:
    """Return a key as the tenants file has it."""
    return DIGEST_PREFIX + _digest(key).hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that OpenAI clients send as a bearer, and Anthropic's in a header of its own."""
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip() or None
