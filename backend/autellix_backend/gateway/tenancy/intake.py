"""Request bodies that are being received: limits apply to their announced size and to the bytes received.

Only received bytes are counted: a client that announces much and sends little takes up no space. From its
admission on a call's body counts among the bytes of its tenant's calls instead. A long body that would take
long to parse is refused, and is looked at with pauses.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import TracebackType

from starlette.types import Receive

from autellix_backend.gateway.errors import (
    BodyTooLargeError,
    ClientGoneError,
    ContentEncodingError,
    GatewayError,
    IntakeFullError,
    InvalidRequestError,
    LimitError,
    RequestTimeoutError,
)
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.gateway.tenancy.quotas import too_many
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.pauses import Pauses
from autellix_backend.raw_json import MAX_MARKS, ValueMarks, count_marks

MAX_INCOMING_BYTES = 2**28
"""The most bytes of bodies that are being received, of one tenant half."""
LONG_BODY_BYTES = 256 * 1024
"""A step over a longer body takes up to half a millisecond for each of these."""
PAUSE_RATIO = 3.0
"""The pause after a step over a long body, in steps."""
MAX_LENGTH_DIGITS = 18
"""Digits of a Content-Length that are read: the parser refuses longer numbers, so only zeros precede them."""
BODY_GRACE_S = 30.0
MIN_BODY_BYTES_PER_S = 8 * 1024
"""The least rate of a body after the grace period: a slow one holds memory and a connection."""
CHECKED_BYTES = 256 * 1024
"""Bytes of a long body between two pauses: a third of a millisecond."""


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
        self.tenant = tenant
        self._intake = intake
        self._size_bytes = 0
        self._turn: asyncio.Lock | None = None
        """The turn of a long body that is parsed."""
        self._pauses: Pauses | None = None
        """The pauses within that turn."""

    def __enter__(self) -> BodyHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def read(
        self, headers: Mapping[str, str], receive: Receive, max_bytes: int, setting: str | None = None
    ) -> bytes:
        """Read the body, and check that it is quick to parse; a long one has its turn from then on.

        Args:
            headers: The request's, by their lower-case names.
            receive: The request's.
            max_bytes: The most bytes of this body.
            setting: The setting that holds the limit, if any.

        Raises:
            ContentEncodingError: if it is compressed.
            BodyTooLargeError: as soon as it is known to exceed `max_bytes`, or what its tenant may send.
            LimitError: as soon as it does with the tenant's other calls.
            IntakeFullError: if the gateway receives too many bytes of bodies at once.
            ClientGoneError: if the client leaves before its end.
            RequestTimeoutError: if it comes too slowly.
            InvalidRequestError: if it holds too many values.
        """
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise ContentEncodingError(encoding)
        declared = headers.get("content-length", "")
        if declared.isdecimal():
            declared_bytes = int(declared[-MAX_LENGTH_DIGITS:])
            if declared_bytes > max_bytes:
                raise BodyTooLargeError(max_bytes, setting)
            self.expect(declared_bytes)
        data = await self._receive(receive, max_bytes, setting)
        if len(data) > LONG_BODY_BYTES:
            # A long body takes milliseconds in each step over it.
            await self.pause()
            await self._check_values(data)
            await self.pause()
        return data

    async def _receive(self, receive: Receive, max_bytes: int, setting: str | None) -> bytes:
        parts: list[bytes] = []
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(BODY_GRACE_S) as deadline:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    if self._size_bytes + len(part) > max_bytes:
                        raise BodyTooLargeError(max_bytes, setting)
                    self.add(len(part))
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
                    deadline.reschedule(began_s + BODY_GRACE_S + self._size_bytes / MIN_BODY_BYTES_PER_S)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self._size_bytes} bytes of its body came; "
                f"expected {MIN_BODY_BYTES_PER_S} bytes a second at least"
            ) from None

    async def _check_values(self, data: bytes) -> None:
        """Check that a long body is quick to parse, with pauses.

        Raises:
            InvalidRequestError: if it holds too many values.
        """
        # Its texts may hold most of them: these are quick to skip, and what an agent reads may be JSON.
        if await self._exceeds(count_marks, data, CHECKED_BYTES) and await self._exceeds(
            ValueMarks().count, data, CHECKED_BYTES // 64
        ):
            raise InvalidRequestError(
                f"the body holds more than {MAX_MARKS} lists, objects, fields and items; expected fewer"
            )

    async def _exceeds(self, count: Callable[[bytes], int], data: bytes, part_bytes: int) -> bool:
        marks = 0
        for start in range(0, len(data), part_bytes):
            marks += count(data[start : start + part_bytes])
            if marks > MAX_MARKS:
                return True
            await self.pause()
        return False

    def expect(self, size_bytes: int) -> None:
        """Check the size that a request announces.

        Raises:
            BodyTooLargeError: if it exceeds the tenant's limit.
            LimitError: if it does so together with the tenant's other calls.
            IntakeFullError: if the gateway already holds too many bytes.
        """
        self._intake.check(self.tenant, size_bytes, size_bytes)

    def add(self, size_bytes: int) -> None:
        """Count received bytes; raises as expect() does."""
        self._intake.check(self.tenant, self._size_bytes + size_bytes, size_bytes)
        self._intake.add(self.tenant.name, size_bytes)
        self._size_bytes += size_bytes

    async def pause(self) -> None:
        """Let others' calls advance before each step over the body, if it is a long one.

        So the long bodies of a tenant take a quarter of the event loop at most.
        """
        if self._size_bytes <= LONG_BODY_BYTES:
            return
        if self._pauses is None:
            turn = self._intake.turn(self.tenant)
            await turn.acquire()
            self._turn, self._pauses = turn, Pauses(PAUSE_RATIO)
        else:
            await self._pauses.pause()

    def end_turn(self) -> None:
        """End the turn of a long body; may be called twice."""
        if self._turn is not None:
            self._turn.release()
            self._turn = self._pauses = None

    def release(self) -> None:
        """Release the bytes and the turn; may be called twice."""
        self.end_turn()
        if self._size_bytes:
            self._intake.add(self.tenant.name, -self._size_bytes)
            self._size_bytes = 0


def _too_many_bytes(limit: int, would_be: int) -> LimitError:
    return too_many("max_call_bytes", "too_many_call_bytes", "bytes of calls in flight", limit, would_be)
