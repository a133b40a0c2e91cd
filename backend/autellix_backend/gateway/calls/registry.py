"""The life cycle of calls at the gateway: begun once, settled exactly once, whatever happens in between.

A call waits for one account from each engine request that it became; if they do not all come in time, its
cost is estimated from the time that passed here, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.core.report import EngineReport
from autellix_backend.gateway.calls.usage import Usage
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.http.requests import RequestFacts
from autellix_backend.gateway.identity.identity import Identity
from autellix_backend.gateway.tenancy.limiter import Limiter, Permit
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.stores.base import CallEnd, CallStart, Inherited, ProgramStore
from autellix_wire import engine_args

MAX_READABLE_ID = 200
"""How much of the client's call id goes into the engine's, which has a bound."""

DRAIN_MARGIN_S = 1.0
"""How much longer than for the accounts the gateway's end waits for cancelled calls."""


class Outcome(enum.Enum):
    """How a call ended."""

    OK = "ok"
    REJECTED = "rejected"
    """The engine answered with an error."""
    UNAVAILABLE = "unavailable"
    """No engine answered, or it died."""
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    """The client went away."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a call cost, as the client gets it; None where only the engine could tell and did not."""

    call_id: str
    program_id: str
    wait_s: float
    service_s: float
    preemptions: int | None = None
    demotions: int | None = None
    promotions: int | None = None
    level: int | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    arrival_step: int | None = None
    finish_step: int | None = None
    engine_steps: int | None = None
    estimated: bool = False


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call between its two ends."""

    tenant: Tenant
    identity: Identity
    """Program and session by the ids that the backend knows them by."""
    key: str
    """Its id in the store."""
    engine_key: str
    """Its id in the engine; another one for each attempt."""
    record_count: int
    inherited: Inherited
    entry_service_s: float
    """The service that the policy lets it start with."""
    level: int
    """The level that it enters the engine's queues at."""
    start_s: float
    permit: Permit | None = None
    """What it holds of its tenant's limits; None where there are none."""
    accounts: list[EngineReport] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    request: RequestFacts = field(default_factory=RequestFacts)
    first_bytes_s: float | None = None
    """When the first bytes of its streamed answer went out."""
    usage: Usage | None = None
    """What the answer said of its tokens; read only where somebody asks for it."""
    sent_s: float | None = None
    """When it was last sent to the engine."""
    receipt: Receipt | None = None
    """Set when the call is settled."""
    engine: str = ""
    """The engine that it is sent to, perhaps another one for each attempt."""
    body_bytes: int = 0
    queued: QueuedCall = field(init=False)
    """Its waiting in the queues before engines."""

    def __post_init__(self) -> None:
        self.queued = QueuedCall(
            Arrival(
                self.key,
                self.identity.program,
                thread_id=self.identity.thread,
                tenant=self.tenant.name,
                weight=self.tenant.weight,
                service_s=self.inherited.program_service_s,
                inherited_s=self.inherited.service_s,
                wait_s=self.inherited.wait_s,
                expected_s=self.inherited.expected_s,
            )
        )

    def engine_args(self) -> dict[str, str | float]:
        """Return the engine's arguments, for vllm_xargs."""
        args: dict[str, str | float] = {
            engine_args.PROGRAM: self.identity.program,
            engine_args.CALL: self.engine_key,
            engine_args.THREAD: self.identity.thread,
            engine_args.SERVICE_S: self.inherited.service_s,
            engine_args.WAIT_S: self.inherited.wait_s,
        }
        if self.inherited.program_service_s != self.inherited.service_s:
            args[engine_args.PROGRAM_SERVICE_S] = self.inherited.program_service_s
        if self.inherited.expected_s is not None:
            args[engine_args.EXPECTED_S] = self.inherited.expected_s
        if self.tenant.name:
            args[engine_args.TENANT] = self.tenant.name
            args[engine_args.WEIGHT] = self.tenant.weight
        if self.identity.is_final or self.identity.is_anonymous:
            args[engine_args.LAST] = 1
        return args

    @property
    def shown_program(self) -> str:
        """Return the program's id as its client knows it."""
        return self.tenant.shown(self.identity.program)


class CallObserver(Protocol):
    """Who is told of calls; must not raise, block or change anything."""

    def began(self, call: OpenCall) -> None:
        """Learn that a call began."""
        ...

    def settled(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """Learn that a call was settled, once for each that began; its receipt and usage are set."""
        ...


class CallRegistry:
    """Begins and settles calls, and matches the engine's accounts to them."""

    def __init__(
        self,
        store: ProgramStore,
        scheduler: SchedulerConfig,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        report_wait_s: float,
        observer: CallObserver | None = None,
        limiter: Limiter | None = None,
        wants_usage: bool = False,
    ) -> None:
        self._observer = observer
        self._limiter = limiter
        self._wants_usage = wants_usage
        self._store = store
        self._scheduler = scheduler
        self._policy = make_policy(scheduler.policy)
        self._bounds = scheduler.bounds if self._policy.has_levels else ()
        self._metrics = metrics
        self._clock = clock
        self._account_wait_s = report_wait_s
        self._open: dict[str, OpenCall] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # A retried call has its id twice, and gateways may share an engine: keys are unique over both.
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    @property
    def open_count(self) -> int:
        """Return the number of calls that are not settled."""
        return len(self._open)

    def find(self, engine_key: str) -> OpenCall | None:
        """Return the open call of an id in the engine."""
        return self._open.get(engine_key)

    def note_first_bytes(self, call: OpenCall) -> None:
        """Note that the first bytes of a streamed answer go out; later ones change nothing."""
        if call.first_bytes_s is None:
            call.first_bytes_s = self._clock()

    def open_calls(self) -> Iterable[OpenCall]:
        """Return the calls that are not settled, oldest first."""
        return self._open.values()

    @property
    def wants_usage(self) -> bool:
        """Say whether anybody needs the token counts of the answers."""
        return self._wants_usage or self._scheduler.service == "tokens"

    def new_id(self) -> str:
        """Return an id for a call whose client gave none."""
        return f"call-{self._prefix}-{next(self._numbers)}"

    async def begin(
        self, tenant: Tenant, identity: Identity, record_count: int, body_bytes: int, *, engine: str
    ) -> OpenCall:
        """Enter a call of a tenant, that an engine is to answer, and learn what it inherits.

        Raises:
            LimitError: if the tenant's limits forbid it.
            BodyTooLargeError: if they do for its body alone.
        """
        now = self._clock()
        permit = None
        if self._limiter is not None:
            permit = self._limiter.admit(tenant, identity.program, identity.session, body_bytes, now)
        key = self._new_key(identity.call)
        try:
            inherited = await self._store.begin(_call_start(identity, key), now)
        except BaseException:
            if self._limiter is not None and permit is not None:
                self._limiter.cancel(permit, now)
            raise
        entry_service_s = self._policy.inherit(inherited.service_s)
        level = bisect_right(self._bounds, entry_service_s) + 1
        call = OpenCall(
            tenant, identity, key, key, record_count, inherited, entry_service_s, level, now, permit
        )
        call.engine, call.body_bytes = engine, body_bytes
        self._open[key] = call
        self._is_idle.clear()
        if self._observer is not None:
            self._observer.began(call)
        return call

    def send(self, call: OpenCall) -> None:
        """Note that a call goes to the engine, perhaps again."""
        if call.sent_s is not None:
            self.recall(call)
        call.sent_s = self._clock()

    def recall(self, call: OpenCall) -> None:
        """Note that a call that was sent came to nothing; it gets another id in the engine.

        An account of the attempt that failed must not pass for one of the next.
        """
        del self._open[call.engine_key]
        call.engine_key = self._new_key(call.identity.call)
        call.accounts.clear()
        call.complete.clear()
        call.sent_s = None
        self._open[call.engine_key] = call

    def count_repeat(self, call: OpenCall) -> None:
        """Count a call that is sent again because its engine died."""
        self._metrics.queues.redispatches.labels(call.engine).inc()

    def deliver(self, account: EngineReport) -> None:
        """Take one account from an engine; what no call waits for is counted and dropped."""
        call = self._open.get(account.call_id)
        if call is None:
            self._metrics.reports.labels("late").inc()
            return
        self._metrics.reports.labels("matched").inc()
        call.accounts.append(account)
        if len(call.accounts) >= call.record_count:
            call.complete.set()

    async def settle(self, call: OpenCall, outcome: Outcome, *, has_account: bool) -> Receipt:
        """Settle a call and return its receipt; later calls return the same receipt and change nothing.

        Args:
            call: The call.
            outcome: How it ended.
            has_account: Whether its accounts are worth waiting for.
        """
        if has_account and call.receipt is None:
            try:
                async with asyncio.timeout(self._account_wait_s):
                    await call.complete.wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                # Who has no time to wait for the account must still leave no open call behind.
                await self._settle(call, outcome)
                raise
        return await self._settle(call, outcome)

    async def idle(self) -> None:
        """Return once no call is open."""
        await self._is_idle.wait()

    async def drained(self) -> None:
        """Return once no call is open, or when every open call has had the time to get its account."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._account_wait_s + DRAIN_MARGIN_S):
                await self._is_idle.wait()

    async def _settle(self, call: OpenCall, outcome: Outcome) -> Receipt:
        if call.receipt is not None:
            return call.receipt
        now = self._clock()
        call.receipt = self._make_receipt(call, outcome, now)
        del self._open[call.engine_key]
        if not self._open:
            self._is_idle.set()
        self._count(call, call.receipt, outcome, now)
        if self._limiter is not None and call.permit is not None:
            self._charge(self._limiter, call.permit, call, outcome, now)
        if self._observer is not None:
            self._observer.settled(call, outcome, now)
        await self._store.settle(_call_end(call, call.receipt, outcome), now)
        return call.receipt

    def _charge(self, limiter: Limiter, permit: Permit, call: OpenCall, outcome: Outcome, now: float) -> None:
        assert call.receipt is not None
        identity = call.identity
        limiter.charge(
            permit,
            tokens=_tokens(call.receipt, call.usage),
            service_s=call.receipt.service_s,
            now=now,
            # What no engine took is not counted among the tenant's requests.
            is_refunded=outcome is Outcome.UNAVAILABLE,
            is_final=identity.is_final or identity.is_anonymous,
        )

    def _make_receipt(self, call: OpenCall, outcome: Outcome, now: float) -> Receipt:
        if call.accounts:
            return _accounted(call)
        # An engine that refused or was not there did no work; any other time may all have been service.
        did_work = outcome not in (Outcome.REJECTED, Outcome.UNAVAILABLE)
        return Receipt(
            call_id=call.identity.call,
            program_id=call.shown_program,
            wait_s=call.queued.wait_s,
            service_s=self._estimated_service_s(call, now) if did_work else 0.0,
            estimated=True,
        )

    def _estimated_service_s(self, call: OpenCall, now: float) -> float:
        """Return the weighted tokens that the engine states, if they are the unit, else the time here."""
        usage = call.usage
        if call.sent_s is None:
            return 0.0
        if usage is None or self._scheduler.service != "tokens":
            return now - call.sent_s
        read_tokens = usage.prompt_tokens - (usage.cached_tokens or 0)
        return self._scheduler.nominal_service_s(max(0, read_tokens), usage.completion_tokens)

    def _count(self, call: OpenCall, receipt: Receipt, outcome: Outcome, now: float) -> None:
        metrics, engine = self._metrics, call.engine
        metrics.calls.labels(outcome.value, call.identity.source, engine).inc()
        metrics.duration_s.labels(engine).observe(now - call.start_s)
        metrics.service_s.labels(engine).inc(receipt.service_s)
        metrics.wait_s.labels(engine).inc(receipt.wait_s)
        metrics.preemptions.labels(engine).inc(receipt.preemptions or 0)
        if call.tenant.name:
            metrics.tenant_calls.labels(call.tenant.name, outcome.value).inc()
            metrics.tenant_service_s.labels(call.tenant.name).inc(receipt.service_s)

    def _new_key(self, call_id: str) -> str:
        return f"{call_id[:MAX_READABLE_ID]}~{self._prefix}-{next(self._numbers)}"


def _call_start(identity: Identity, key: str) -> CallStart:
    return CallStart(
        key=key,
        call_id=identity.call,
        program_id=identity.program,
        thread_id=identity.thread,
        parents=identity.parents,
        session_id=identity.session,
        name=identity.name,
        hint=identity.hint,
        flags=identity.flags,
        interceptions=identity.interceptions,
    )


def _call_end(call: OpenCall, receipt: Receipt, outcome: Outcome) -> CallEnd:
    accounts = call.accounts
    return CallEnd(
        key=call.key,
        program_id=call.identity.program,
        outcome=outcome.value,
        services_s=tuple(account.service_s for account in accounts) or (receipt.service_s,),
        wait_s=receipt.wait_s,
        table_wait_s=call.queued.counted_wait_s + sum(account.table_wait_s for account in accounts),
        # What the engine used is what it had; it may know more of a program than the gateway.
        inherited_service_s=max((a.inherited_service_s for a in accounts), default=call.entry_service_s),
        is_estimated=receipt.estimated,
        level=receipt.level,
        preemptions=receipt.preemptions,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        output_tokens=receipt.output_tokens,
        is_final=call.identity.is_final or call.identity.is_anonymous,
    )


def _tokens(receipt: Receipt, usage: Usage | None) -> int:
    """Return prompt and output tokens as the engine accounted for them, else as its answer states."""
    if receipt.prompt_tokens is not None:
        return receipt.prompt_tokens + (receipt.output_tokens or 0)
    return 0 if usage is None else usage.prompt_tokens + usage.completion_tokens


def _accounted(call: OpenCall) -> Receipt:
    """Add up the accounts; the waits of parallel choices overlap, so the longest counts."""
    accounts = call.accounts
    return Receipt(
        call_id=call.identity.call,
        program_id=call.shown_program,
        wait_s=call.queued.wait_s + max(account.wait_s for account in accounts),
        service_s=sum(account.service_s for account in accounts),
        preemptions=sum(account.preemptions for account in accounts),
        demotions=sum(account.demotions for account in accounts),
        promotions=sum(account.promotions for account in accounts),
        level=max(account.level for account in accounts),
        cached_tokens=sum(account.cached_tokens for account in accounts),
        prompt_tokens=sum(account.prompt_tokens for account in accounts),
        output_tokens=sum(account.output_tokens for account in accounts),
        arrival_step=min(account.arrival_step for account in accounts),
        finish_step=max(account.finish_step for account in accounts),
        engine_steps=max(account.engine_steps for account in accounts),
        estimated=len(accounts) < call.record_count,
    )
