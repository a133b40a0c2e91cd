"""Bodies on their way in: their bytes count against limits before they are read, and as they come.

Only what has come is counted: a client that announces much and sends little takes nobody's room. From its
admission on a call's body counts among the bytes of its tenant's calls instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from autellix_backend.gateway.errors import BodyTooLargeError, GatewayError, IntakeFullError, LimitError
from autellix_backend.gateway.tenancy.limiter import CallLimits
from autellix_backend.gateway.tenancy.quotas import too_many
from autellix_backend.gateway.tenancy.tenants import Tenant


class Intake:
    """The bytes of bodies that the gateway holds without a call, by tenant."""

    def __init__(
        self,
        max_bytes: int,
        max_tenant_bytes: int,
        limiter: CallLimits | None,
        on_refusal: Callable[[str, str], None],
    ) -> None:
        """Start empty.

        Args:
            max_bytes: The most bytes of all tenants.
            max_tenant_bytes: The most bytes of one.
            limiter: Knows the bytes of the tenants' calls; None without limits.
            on_refusal: Is called with the tenant and the code of each refusal.
        """
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._limiter = limiter
        self._on_refusal = on_refusal
        self._held: Counter[str] = Counter()
        self._total_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of all bodies on their way in."""
        return self._total_bytes

    def hold(self, tenant: Tenant) -> BodyHold:
        """Return the hold of one request's body, which has no bytes yet."""
        return BodyHold(self, tenant)

    def check(self, tenant: Tenant, size_bytes: int, more_bytes: int) -> None:
        """Raise the error of a body that may not grow: `size_bytes` in all, by `more_bytes` from now."""
        error = self._refusal(tenant, size_bytes, more_bytes)
        if error is not None:
            self._on_refusal(tenant.name, error.code)
            raise error

    def add(self, tenant: str, size_bytes: int) -> None:
        """Count bytes that came; those that are no longer held are negative."""
        self._total_bytes += size_bytes
        self._held[tenant] += size_bytes
        if not self._held[tenant]:
            del self._held[tenant]

    def _refusal(self, tenant: Tenant, size_bytes: int, more_bytes: int) -> GatewayError | None:
        held_bytes = self._held[tenant.name] + more_bytes
        limit = tenant.limits.max_call_bytes
        if limit is not None and size_bytes > limit:
            return BodyTooLargeError(limit, "limits.max_call_bytes")
        if limit is not None and self._limiter is not None:
            call_bytes = self._limiter.call_bytes(tenant.name) + held_bytes
            if call_bytes > limit:
                return _too_many_bytes(limit, call_bytes)
        if held_bytes > self._max_tenant_bytes or self._total_bytes + more_bytes > self._max_bytes:
            return IntakeFullError(self._max_bytes)
        return None


class BodyHold:
    """The bytes of one request's body, which are given back at the end of the request or before."""

    def __init__(self, intake: Intake, tenant: Tenant) -> None:
        self._intake = intake
        self._tenant = tenant
        self._size_bytes = 0

    def __enter__(self) -> BodyHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def expect(self, size_bytes: int) -> None:
        """Check the size that a request announces.

        Raises:
            BodyTooLargeError: if it is above the tenant's limit.
            LimitError: if it is with the bytes of the tenant's other calls.
            IntakeFullError: if the gateway holds too many bytes already.
        """
        self._intake.check(self._tenant, size_bytes, size_bytes)

    def add(self, size_bytes: int) -> None:
        """Count bytes that have come; raises as expect() does."""
        self._intake.check(self._tenant, self._size_bytes + size_bytes, size_bytes)
        self._intake.add(self._tenant.name, size_bytes)
        self._size_bytes += size_bytes

    def release(self) -> None:
        """Give the bytes back; may be called twice."""
        self._intake.add(self._tenant.name, -self._size_bytes)
        self._size_bytes = 0


def _too_many_bytes(limit: int, would_be: int) -> LimitError:
    return too_many("max_call_bytes", "too_many_call_bytes", "bytes of calls in flight", limit, would_be)
