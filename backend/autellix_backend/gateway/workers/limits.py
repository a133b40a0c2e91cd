"""Tenants' limits over all workers: the parent counts, and workers ask it before each limited call.

The parent outlives every worker, and so does the usage. The calls of a worker that dies are released.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from autellix_backend.gateway.errors import LimitError, ParentSilentError
from autellix_backend.gateway.tenancy.limiter import NO_LIMITS, Charge, Limiter, charge_of
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.gateway.workers.link import Link, LinkLostError
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.settings import TenantLimits

ADMIT, CHARGE, CANCEL, PROGRAM_ENDED = "admit", "charge", "cancel", "program_ended"
ANSWER_S = 5.0
"""How long the parent may take. It has little else to do, and a call loses nothing while it waits."""


class LimitKeeper:
    """The parent's side: one count of the usage of tenants and programs."""

    def __init__(self, *, epoch_s: float, clock: Callable[[], float]) -> None:
        """Start without any usage; `epoch_s` plus the clock gives seconds since 1970."""
        self._clock = clock
        # Each worker counts the refusals of its own calls.
        self._limiter = Limiter(epoch_s=epoch_s, on_refusal=lambda _tenant, _code: None)
        self._held: defaultdict[int, set[str]] = defaultdict(set)
        """The keys of open calls by worker."""

    def handlers(self, worker: int) -> dict[str, Callable[[Any], Any]]:
        """Return the handlers of one worker's messages."""
        return {
            ADMIT: lambda content: self._admit(worker, *content),
            CHARGE: lambda content: self._charge(worker, content[0], Charge(*content[1])),
            CANCEL: lambda call_key: self._release(worker, call_key),
            PROGRAM_ENDED: self._limiter.on_program_ended,
        }

    def on_ended(self, worker: int) -> None:
        """Release the calls of a worker that has ended, without a charge."""
        for call_key in self._held.pop(worker, ()):
            self._limiter.charge(call_key, self._clock(), Charge())

    def _admit(
        self,
        worker: int,
        tenant: str,
        limits: dict[str, Any],
        call_key: str,
        program_id: str,
        body_bytes: int,
    ) -> tuple[bool, Any, Mapping[str, str]]:
        who = Tenant(name=tenant, limits=TenantLimits(**limits))
        try:
            headers = self._limiter.admit(who, call_key, program_id, body_bytes, self._clock())
        except LimitError as error:
            return False, error.arguments, error.rate_headers
        self._held[worker].add(call_key)
        return True, None, headers

    def _charge(self, worker: int, call_key: str, charge: Charge) -> None:
        self._held[worker].discard(call_key)
        self._limiter.charge(call_key, self._clock(), charge)

    def _release(self, worker: int, call_key: str) -> None:
        self._held[worker].discard(call_key)
        self._limiter.release(call_key, self._clock())


class SharedLimiter:
    """The worker's side: it asks the parent."""

    def __init__(self, link: Link, *, on_refusal: Callable[[str, str], None]) -> None:
        """Take the link; `on_refusal` is called with the tenant and the code of each refusal."""
        self._link = link
        self._on_refusal = on_refusal
        self._open: dict[str, tuple[str, int]] = {}
        """The tenants and bodies of this worker's limited calls."""
        self._bytes: Counter[str] = Counter()

    async def reserve(
        self, tenant: Tenant, call_key: str, program_id: str, body_bytes: int, now: float
    ) -> Mapping[str, str]:
        """Admit a call, as Limiter.reserve() does.

        Raises:
            LimitError: if a limit is reached.
            ParentSilentError: if the parent does not answer.
        """
        del now  # The parent's clock counts.
        if tenant.limits == NO_LIMITS:
            return {}
        self._open[call_key] = tenant.name, body_bytes
        self._bytes[tenant.name] += body_bytes
        question = (tenant.name, asdict(tenant.limits), call_key, program_id, body_bytes)
        try:
            is_admitted, arguments, headers = await self._link.ask(ADMIT, question, ANSWER_S)
        except BaseException as error:
            self.release(call_key, 0.0)
            if isinstance(error, (LinkLostError, TimeoutError)):
                raise ParentSilentError("the limits of this call") from error
            raise
        if is_admitted:
            return dict(headers)
        self._forget(call_key)
        refused = LimitError(*arguments)
        refused.add_rates(headers)
        self._on_refusal(tenant.name, refused.code)
        raise refused

    def release(self, call_key: str, now: float) -> None:
        """Release a call that could not start."""
        del now
        if self._forget(call_key):
            self._link.tell(CANCEL, call_key)

    def call_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's calls at this worker."""
        return self._bytes[tenant]

    def on_call_settled(self, settled: SettledCall) -> None:
        """Charge a call that was admitted by limits."""
        if self._forget(settled.start.key):
            self._link.tell(CHARGE, (settled.start.key, charge_of(settled)))

    def on_program_ended(self, program_id: str) -> None:
        """Drop a program; the id may be unknown."""
        self._link.tell(PROGRAM_ENDED, program_id)

    def _forget(self, call_key: str) -> bool:
        found = self._open.pop(call_key, None)
        if found is None:
            return False
        tenant, body_bytes = found
        self._bytes[tenant] -= body_bytes
        if not self._bytes[tenant]:
            del self._bytes[tenant]
        return True
