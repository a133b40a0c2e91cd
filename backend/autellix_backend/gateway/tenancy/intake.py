"""Request bodies that are being received: limits apply to their announced size and to the bytes received.

Only received bytes are counted: a client that announces much and sends little takes up no space. From its
admission on a call's body counts among the bytes of its tenant's calls instead.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

from autellix_backend.gateway.errors import BodyTooLargeError, GatewayError, IntakeFullError, LimitError
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.quotas import too_many
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.pauses import Pauses

LONG_BODY_BYTES = 256 * 1024
"""A step over a longer body takes up to half a millisecond for each of these."""
PAUSE_RATIO = 3.0
"""The pause after a step over a long body, in steps."""


class Intake:
    """Counts the bytes of bodies that belong to no admitted call, by tenant."""

    def __init__(
        self,
        max_bytes: int,
        max_tenant_bytes: int,
        limiter: Limiter | None,
        on_refusal: Callable[[str, str], None],
    ) -> None:
        """Start empty.

        Args:
            max_bytes: The most bytes of all tenants.
            max_tenant_bytes: The most bytes of one.
            limiter: Counts the bytes of the tenants' calls; None without limits.
            on_refusal: Is called with the tenant and the code of each refusal.
        """
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._limiter = limiter
        self._on_refusal = on_refusal
        self._held: defaultdict[str, int] = defaultdict(int)
        self._total_bytes = 0
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def held_bytes(self) -> int:
        """The bytes of all these bodies."""
        return self._total_bytes

    def hold(self, tenant: Tenant) -> BodyHold:
        """Return an empty hold for the body of one request."""
        return BodyHold(self, tenant)

    def check(self, tenant: Tenant, size_bytes: int, more_bytes: int) -> None:
        """Raise an error if a body may not grow by `more_bytes` to `size_bytes`."""
        error = self._refusal(tenant, size_bytes, more_bytes)
        if error is not None:
            self._on_refusal(tenant.name, error.code)
            raise error

    def turn(self, tenant: Tenant) -> asyncio.Lock:
        """Return the lock of a tenant's long bodies, which are parsed one after the other."""
        return self._turns[tenant.name]

    def add(self, tenant: str, size_bytes: int) -> None:
        """Count received bytes; a negative number releases them."""
        self._total_bytes += size_bytes
        self._held[tenant] += size_bytes
        if not self._held[tenant]:
            del self._held[tenant]

    def _refusal(self, tenant: Tenant, size_bytes: int, more_bytes: int) -> GatewayError | None:
        held_bytes = self._held.get(tenant.name, 0) + more_bytes
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
    """Counts the bytes of one request's body, until the end of the request at the latest."""

    def __init__(self, intake: Intake, tenant: Tenant) -> None:
        self._intake = intake
        self._tenant = tenant
        self._size_bytes = 0
        self._turn: asyncio.Lock | None = None
        """The turn of a long body that is parsed."""
        self._pauses = Pauses(PAUSE_RATIO)

    def __enter__(self) -> BodyHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def expect(self, size_bytes: int) -> None:
        """Check the size that a request announces.

        Raises:
            BodyTooLargeError: if it exceeds the tenant's limit.
            LimitError: if it does so together with the tenant's other calls.
            IntakeFullError: if the gateway already holds too many bytes.
        """
        self._intake.check(self._tenant, size_bytes, size_bytes)

    def add(self, size_bytes: int) -> None:
        """Count received bytes; raises as expect() does."""
        self._intake.check(self._tenant, self._size_bytes + size_bytes, size_bytes)
        self._intake.add(self._tenant.name, size_bytes)
        self._size_bytes += size_bytes

    async def pause(self) -> None:
        """Let others' calls advance before each step over the body, if it is a long one.

        So the long bodies of a tenant take a quarter of the event loop at most.
        """
        if self._size_bytes <= LONG_BODY_BYTES:
            return
        if self._turn is None:
            turn = self._intake.turn(self._tenant)
            await turn.acquire()
            self._turn = turn
            self._pauses = Pauses(PAUSE_RATIO)
        else:
            await self._pauses.pause()

    def end_turn(self) -> None:
        """End the turn of a long body; may be called twice."""
        if self._turn is not None:
            self._turn.release()
            self._turn = None

    def release(self) -> None:
        """Release the bytes and the turn; may be called twice."""
        self.end_turn()
        if self._size_bytes:
            self._intake.add(self._tenant.name, -self._size_bytes)
            self._size_bytes = 0


def _too_many_bytes(limit: int, would_be: int) -> LimitError:
    return too_many("max_call_bytes", "too_many_call_bytes", "bytes of calls in flight", limit, would_be)
