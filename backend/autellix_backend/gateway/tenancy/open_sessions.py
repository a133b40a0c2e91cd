"""The open sessions of each tenant at this gateway, to bound their number."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.core.recent import RecentMap
from autellix_backend.gateway.tenancy.quotas import too_many
from autellix_backend.gateway.tenancy.tenants import Tenant

MAX_SESSIONS = 10_000
"""The most open sessions of one tenant."""
MAX_KNOWN = 2**20
"""Over all tenants. Further sessions are served but not counted."""


class OpenSessions:
    """Counts the running sessions of each tenant; a session without heartbeats expires."""

    def __init__(self, *, ttl_s: float, on_refusal: Callable[[str, str], None]) -> None:
        """Start empty; `on_refusal` is called with the tenant and the code of each refusal."""
        self._sessions: RecentMap[str, None] = RecentMap(ttl_s=ttl_s, max_entries=MAX_KNOWN)
        self._on_refusal = on_refusal

    def count(self, tenant: Tenant) -> int:
        """Return the number of a tenant's sessions."""
        return self._sessions.count(tenant.name)

    def admit(self, tenant: Tenant, session_id: str, now: float) -> None:
        """Count a session that starts or is refreshed.

        Raises:
            LimitError: if it is new and the tenant is at its limit.
        """
        self._sessions.expire_of(tenant.name, now)
        running = self.count(tenant)
        if running >= MAX_SESSIONS and not self._sessions.has(tenant.name, session_id):
            error = too_many("max_sessions", "too_many_sessions", "sessions", MAX_SESSIONS, running + 1)
            self._on_refusal(tenant.name, error.code)
            raise error
        self._sessions.put(tenant.name, session_id, None, now)

    def keep(self, tenant: Tenant, session_id: str, now: float) -> None:
        """Count a session that sent a heartbeat; another gateway may have started it."""
        self._sessions.put(tenant.name, session_id, None, now)

    def end(self, tenant: Tenant, session_id: str) -> None:
        """Forget a session that has ended."""
        self._sessions.discard(tenant.name, session_id)

    def expire(self, now: float) -> None:
        """Forget the sessions without a heartbeat."""
        self._sessions.expire(now)
