"""Tenants and their API keys.

Keys are stored as SHA-256 digests. Slow, salted hashes protect passwords, which can be guessed; a key has 256
random bits, which cannot, and it is checked at each call. Digests are looked up, at a cost that does not grow
with their number; the time of it tells nothing of a key, since nobody can choose a digest.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

from autellix_backend.gateway.errors import AdminOnlyError, InvalidKeyError, UnknownModelError
from autellix_backend.identity.scoped_ids import SEPARATOR, scoped
from autellix_backend.settings import TenantLimits

KEY_PREFIX = "sk-autellix-"
KEY_BYTES = 32
DIGEST_PREFIX = "sha256:"
KEY_END = " until "
"""Between a key's digest and its last day, as the tenants file has them."""

_SCOPE_KEY = "autellix.tenant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant; without authentication the only one, which has no name and leaves ids unchanged."""

    name: str = ""
    weight: float = 1.0
    is_admin: bool = False
    """Whether it sees other tenants' programs, engines, settings and metrics."""
    limits: TenantLimits = field(default_factory=TenantLimits)
    models: tuple[str, ...] = ()
    """The models that it may call; empty for all."""
    sorts_tools: bool = False
    """Whether the tools of its calls go to the engine in the order of their names."""
    key_ends: Mapping[bytes, date] = field(default_factory=dict)
    """The last day (UTC) of its keys that have one, by their digests."""

    def scoped(self, own_id: str) -> str:
        """Return the backend's id for a client's id."""
        return scoped(self.name, own_id)

    def owns(self, scoped_id: str) -> bool:
        """Return whether an id of the backend is this tenant's."""
        return not self.name or scoped_id.startswith(self.name + SEPARATOR)

    @property
    def visible_prefix(self) -> str:
        """The common prefix of the ids that the tenant may see, empty for an admin."""
        return "" if self.is_admin or not self.name else self.name + SEPARATOR

    def shown(self, scoped_id: str) -> str:
        """Return an id of the backend as the tenant sees it: without its own name."""
        return scoped_id.removeprefix(self.name + SEPARATOR) if self.name else scoped_id

    def candidates(self, shown_id: str) -> tuple[str, ...]:
        """Return the backend's ids that a requested id may refer to, the tenant's own first."""
        own = self.scoped(shown_id)
        return (own, shown_id) if self.is_admin and self.name else (own,)

    def check_admin(self, what: str) -> None:
        """Raise an AdminOnlyError that names the resource unless the tenant is an admin."""
        if not self.is_admin:
            raise AdminOnlyError(what)

    def check_model(self, model: str | None) -> None:
        """Raise an UnknownModelError unless the tenant may call a model."""
        if self.models and model not in self.models:
            raise UnknownModelError(model, self.models)


class Tenants:
    """The tenants in force."""

    def __init__(
        self,
        keys: Mapping[bytes, Tenant] = MappingProxyType({}),
        *,
        only_tenant: Tenant | None = None,
        read: Callable[[], Mapping[bytes, Tenant]] | None = None,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        """Set the tenants.

        Args:
            keys: Tenants by the digests of their API keys.
            only_tenant: The tenant of every request; then authentication is off.
            read: Reads `keys` again; None if they cannot change.
            today: The date, UTC.
        """
        self._keys = keys
        self.only = only_tenant
        """The tenant of every request; None where requests need a key."""
        self._read = read
        self._today = today

    @property
    def has_keys(self) -> bool:
        """Whether requests need an API key."""
        return self.only is None

    @property
    def with_day_budgets(self) -> set[str]:
        """The names of the tenants that have a budget for the day."""
        only = [] if self.only is None else [self.only]
        tenants = (*only, *self._keys.values())
        return {tenant.name for tenant in tenants if tenant.limits.day_tokens is not None}

    def reload(self) -> None:
        """Read the tenants again; running calls keep their tenant's earlier limits.

        Raises:
            SettingsError: if they cannot be read; then nothing changes.
        """
        if self._read is not None:
            self._keys = self._read()

    def authenticate(self, headers: Mapping[str, str]) -> Tenant:
        """Return the tenant of a request's API key; `headers` has lower-case names.

        Raises:
            InvalidKeyError: if the key is missing, unknown or has ended.
        """
        if self.only is not None:
            return self.only
        key = presented_key(headers)
        if key is None:
            raise InvalidKeyError("is missing")
        digest = _digest(key)
        found = self._keys.get(digest)
        if found is None:
            raise InvalidKeyError("is not known")
        last = found.key_ends.get(digest)
        if last is not None and self._today() > last:
            raise InvalidKeyError(f"has ended on {last}")
        return found

    def admits(self, headers: Mapping[str, str], tenant: Tenant) -> bool:
        """Return whether a request's key still is that of a tenant, with the same rights."""
        try:
            found = self.authenticate(headers)
        except InvalidKeyError:
            return False
        return (found.name, found.is_admin) == (tenant.name, tenant.is_admin)

    def of(self, scope: Mapping[str, Any]) -> Tenant:
        """Return the tenant of an authenticated request."""
        if self.only is not None:
            return self.only
        tenant: Tenant = scope[_SCOPE_KEY]
        return tenant


def set_tenant(scope: MutableMapping[str, Any], tenant: Tenant) -> None:
    """Attach its tenant to a request."""
    scope[_SCOPE_KEY] = tenant


def new_key() -> str:
    """Return a new API key: 256 random bits behind a prefix for secret scanners."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_line(key: str, last: date | None = None) -> str:
    """Return a key's digest, and its last day, as the tenants file holds it."""
    return DIGEST_PREFIX + _digest(key).hex() + (f"{KEY_END}{last}" if last else "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the API key of a request, None if it has none; `headers` has lower-case names."""
    # OpenAI's clients send it as a bearer token, Anthropic's in a header of their own.
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip() or None
