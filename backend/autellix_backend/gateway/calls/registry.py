"""The registry of open calls: each begins once and is settled exactly once, on every path in between.

A call waits for one report from each engine request that it became. If they do not all come in time, its
receipt is estimated from the tokens of its answer, and is marked as estimated. The time that passed is no
estimate: it holds the call's waiting in the engine. Nobody waits for the receipt of an aborted call, so it
waits longer for its reports: an engine sends them after the step that it was in.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType

from msgspec.structs import replace

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import make_policy
from autellix_backend.gateway.calls.call import Assigned, GatewayCall, ReceivedCall
from autellix_backend.gateway.calls.settlement import answer_source, settle
from autellix_backend.gateway.errors import ForeignProgramError
from autellix_backend.gateway.tenancy.limiter import Limiter
from autellix_backend.identity.classes import ProgramClasses, class_id
from autellix_backend.identity.program_class import program_class
from autellix_backend.observe.metrics import GatewayMetrics
from autellix_backend.observe.settled_call import Outcome, SettledCall, Usage
from autellix_backend.reports.receipt import Receipt
from autellix_backend.reports.report import EngineReport
from autellix_backend.stores.base import CallStart, Inherited, NotOwnerError, ProgramStore

MAX_READABLE_ID = 200
"""Characters of the client's call id that go into the engine's id, whose length is bounded."""

ABORTED_WAITS = 3
"""How many times `report_wait_s` an aborted call waits for its reports."""
DRAIN_MARGIN_S = 1.0
"""How much longer than that the shutdown waits for cancelled calls."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

logger = logging.getLogger(__name__)


class CallRegistry:
    """Begins and settles calls, and matches the engines' reports to them."""

    def __init__(
        self,
        store: ProgramStore,
        scheduler: SchedulerConfig,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        report_wait_s: float,
        limiter: Limiter | None = None,
        classes: ProgramClasses | None = None,
        wants_usage: bool = False,
        examine: Callable[[GatewayCall, SettledCall], SettledCall] | None = None,
    ) -> None:
        self._on_begun: list[Callable[[GatewayCall], None]] = []
        self._on_settled: list[Callable[[SettledCall], None]] = []
        self._limiter = limiter
        self._classes = ProgramClasses() if classes is None else classes
        self._store = store
        self._scheduler = scheduler
        self._policy = make_policy(scheduler.policy)
        self._bounds = scheduler.bounds if self._policy.has_levels else ()
        self._metrics = metrics
        # A look-up of labels costs more than counting.
        self._reports = cache(metrics.reports.labels)
        self._clock = clock
        self._report_wait_s = report_wait_s
        self._wants_usage = wants_usage
        """Whether the token counts of answers are needed even beside reports."""
        self._examine = examine
        """Adds to the record of a settled call what the call itself shows."""
        self._open: dict[str, GatewayCall] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # A retried call repeats its id, and gateways may share an engine: keys are unique over both.
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[GatewayCall]:
        return iter(self._open.values())

    def find(self, engine_key: str) -> GatewayCall | None:
        """Return the open call of an id in the engine."""
        return self._open.get(engine_key)

    def subscribe(
        self,
        *,
        on_begun: Callable[[GatewayCall], None] | None = None,
        on_settled: Callable[[SettledCall], None] | None = None,
    ) -> None:
        """Publish the beginning and the settlement of each call, each once.

        Subscribers are called in their order; they must not raise, block or change a call.
        """
        if on_begun is not None:
            self._on_begun.append(on_begun)
        if on_settled is not None:
            self._on_settled.append(on_settled)

    @property
    def gateway_id(self) -> str:
        """The id by which engines know this gateway."""
        return self._prefix

    def new_id(self) -> str:
        """Return an id for a call whose client gave none."""
        return f"call-{self._prefix}-{next(self._numbers)}"

    async def begin(self, assigned: Assigned) -> GatewayCall:
        """Admit a call by its tenant's limits, and enter it into the process table.

        Raises:
            LimitError: if the tenant's limits forbid it.
            ForeignProgramError: if identity is strict and the program is another client's.
        """
        now, request = self._clock(), assigned.request
        tenant, identity = request.tenant, request.identity
        start = make_start(request, self._new_key(identity.call), self._new_class(request))
        rate_headers = NO_HEADERS
        if self._limiter is not None:
            rate_headers = self._limiter.admit(tenant, start.key, start.program_id, assigned.demand, now)
        try:
            inherited = await self._store.begin(start, now)
        except BaseException as error:
            if self._limiter is not None:
                self._limiter.release(start.key, now)
            if isinstance(error, NotOwnerError):
                raise ForeignProgramError(tenant.shown(start.program_id)) from error
            raise
        if self._limiter is not None:
            self._limiter.on_begun(start.program_id, inherited.tokens)
        class_name = self._classes.on_call_begun(start, offers_tools=request.body.offers_tools)
        level = bisect_right(self._bounds, inherited.service_s) + 1
        call = make_call(assigned, start, inherited, now, level, rate_headers, class_name)
        self._open[start.key] = call
        self._is_idle.clear()
        for on_begun in self._on_begun:
            on_begun(call)
        return call

    async def end_emptied(self, call: GatewayCall) -> None:
        """End the program from which a begun call's program has taken the last call."""
        adopts = call.start.adopts
        if adopts is not None:
            await self._store.end_program(adopts.program_id, self._clock())

    def on_sent(self, call: GatewayCall) -> None:
        """Note that a call is sent to its engine, perhaps again."""
        if call.sent_s is not None:
            self.renew_key(call)
        call.sent_s = self._clock()

    def on_first_bytes(self, call: GatewayCall) -> None:
        """Note that the first bytes of a streamed answer go out."""
        call.answer.first_bytes_s = self._clock()

    def on_repeat(self, call: GatewayCall) -> None:
        """Count a call that is sent again because its engine died."""
        self._metrics.redispatches.labels(call.engine).inc()

    def renew_key(self, call: GatewayCall) -> None:
        """Give a call a new id in the engine, so that a late report of a failed attempt counts for none."""
        del self._open[call.engine_key]
        call.engine_key = self._new_key(call.start.call_id)
        call.reports.clear()
        call.has_reports.clear()
        call.sent_s = None
        self._open[call.engine_key] = call

    def on_report(self, engine: str, report: EngineReport) -> None:
        """Match an engine's report to its call; one that no call there waits for is counted and dropped."""
        call = self._open.get(report.call_id)
        # Ids can be guessed: no engine settles the calls of another.
        if call is None or call.engine != engine or len(call.reports) > call.max_reports:
            self._reports("late").inc()
            return
        self._reports("matched").inc()
        call.reports.append(report)
        if len(call.reports) >= call.request.body.record_count:
            call.has_reports.set()

    async def settle(
        self,
        call: GatewayCall,
        outcome: Outcome,
        *,
        has_reports: bool,
        read_usage: Callable[[], Usage | None] = lambda: None,
    ) -> Receipt:
        """Settle a call and return its receipt; later calls return the same receipt and change nothing.

        With `has_reports` it waits for the engine's reports; `read_usage` returns what the answer states, and
        is called if that is needed.
        """
        try:
            if has_reports and call.receipt is None and not call.has_reports.is_set():
                waits = ABORTED_WAITS if outcome is Outcome.ABORTED else 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._report_wait_s * waits):
                        await call.has_reports.wait()
        finally:
            # A cancelled call has no time to wait for reports; it must be settled all the same.
            receipt = call.receipt or await self._settle(call, outcome, read_usage)
        return receipt

    async def idle(self) -> None:
        """Return once no call is open."""
        await self._is_idle.wait()

    async def drained(self) -> None:
        """Return once no call is open, or every open call has had time to get its reports."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._report_wait_s * ABORTED_WAITS + DRAIN_MARGIN_S):
                await self._is_idle.wait()

    async def _settle(
        self, call: GatewayCall, outcome: Outcome, read_usage: Callable[[], Usage | None]
    ) -> Receipt:
        now = self._clock()
        if self._wants_usage or not call.reports:
            call.usage = read_usage()
        settlement = settle(call, outcome, self._scheduler, now, ended_at_s=time.time())
        receipt = call.receipt = settlement.receipt
        del self._open[call.engine_key]
        if not self._open:
            self._is_idle.set()
        settled = self._examined(call, settlement.settled)
        for on_settled in self._on_settled:
            try:
                on_settled(settled)
            except Exception:
                # The boundary to other parts: one that fails must not leave the call open in the table.
                logger.exception("a subscriber to settled calls failed")
        await self._store.settle(settlement.end, now)
        if settlement.answer_ids:
            tenant = call.request.tenant.name
            await self._store.keep_answer(tenant, settlement.answer_ids, answer_source(call), now)
        return receipt

    def _examined(self, call: GatewayCall, settled: SettledCall) -> SettledCall:
        if self._examine is None:
            return settled
        try:
            return self._examine(call, settled)
        except Exception:
            # As with subscribers: a diagnosis that fails must not leave the call open in the table.
            logger.exception("a settled call could not be examined")
            return settled

    def _new_class(self, request: ReceivedCall) -> str | None:
        """Return the class that a call gives its program, None if that has one."""
        identity, body = request.identity, request.body
        if not self._classes.is_open(identity.program, offers_tools=body.offers_tools):
            return None
        return class_id(request.tenant.name, program_class(identity.name, body.fields))

    def _new_key(self, call_id: str) -> str:
        return f"{call_id[:MAX_READABLE_ID]}~{self._prefix}-{next(self._numbers)}"


def make_start(request: ReceivedCall, key: str, class_id: str | None = None) -> CallStart:
    """Return a call's record for the store; `class_id` is None if the program's class is known already."""
    identity = request.identity
    return CallStart(
        key=key,
        call_id=identity.call,
        program_id=identity.program,
        thread_id=identity.thread,
        thread_name=identity.thread_name,
        parents=identity.parents,
        session_id=identity.session,
        name=identity.name,
        hints=identity.hints,
        flags=identity.flags,
        interceptions=identity.interceptions,
        owner=identity.owner,
        class_id=class_id,
        adopts=identity.adopts,
        is_identified=identity.is_identified,
    )


def make_call(
    assigned: Assigned,
    start: CallStart,
    inherited: Inherited,
    now: float,
    level: int = 1,
    rate_headers: Mapping[str, str] = NO_HEADERS,
    class_name: str = "",
) -> GatewayCall:
    """Return a call that begins now; `class_name` is the class of its program."""
    request = assigned.request
    tenant, identity = request.tenant, request.identity
    is_alone = identity.is_alone
    if is_alone:
        inherited = replace(inherited, age_s=0.0, work=0.0)
    arrival = Arrival(
        start.key,
        # The program of its process mixes strangers; this is the one it has if a later call continues it.
        tenant.scoped(start.call_id) if is_alone else start.program_id,
        is_identified=identity.is_identified,
        thread_id=start.thread_id,
        tenant=tenant.name,
        weight=tenant.weight,
        service_s=inherited.program_service_s,
        wait_s=inherited.wait_s,
        inherited_s=inherited.service_s,
        age_s=inherited.age_s,
        work=inherited.work,
        hints=replace(start.hints, class_name=class_name) if class_name else start.hints,
        context=Context(assigned.prompt_tokens, prefix=assigned.prefix or None),
    )
    return GatewayCall(
        request=request,
        assigned=assigned,
        arrival=arrival,
        caller=request.caller,
        is_alone=is_alone,
        start=start,
        inherited=inherited,
        began_s=now,
        level=level,
        shown_program=tenant.shown(start.program_id) if tenant.name else start.program_id,
        is_last=identity.is_last(offers_tools=request.body.offers_tools),
        rate_headers=rate_headers,
        engine_key=start.key,
    )
