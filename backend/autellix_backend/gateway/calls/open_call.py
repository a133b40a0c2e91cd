"""One call between its beginning and its settlement. Only the registry changes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from autellix_backend.core.arrival import Arrival
from autellix_backend.gateway.calls.receipt import Receipt, add_reports
from autellix_backend.gateway.calls.request_facts import RequestFacts
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.identity.identity import Identity
from autellix_backend.gateway.lifecycle import CallBegan, CallSettled, Outcome, Usage
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.call_facts import CallFacts
from autellix_backend.reports.report import EngineReport
from autellix_backend.stores.base import CallEnd, CallStart, Inherited
from autellix_wire import engine_args


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A call as it arrives, identified and assigned to an engine."""

    tenant: Tenant
    identity: Identity
    """Program and session by the ids that the backend knows them by."""
    facts: RequestFacts
    body_bytes: int
    record_count: int
    """The engine requests that it becomes: one for each prompt and choice."""
    engine: str

    @property
    def is_final(self) -> bool:
        """Whether its program ends with it."""
        return self.identity.is_final or self.identity.is_anonymous

    def start(self, key: str) -> CallStart:
        """Return what the store has to know."""
        identity = self.identity
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


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that has begun."""

    request: CallRequest
    began: CallBegan
    inherited: Inherited
    queued: QueuedCall
    """Its waiting in the queues before engines."""
    rate_headers: dict[str, str]
    """The headers about its tenant's rate limits."""
    engine: str
    """The engine that it is at, perhaps another one for each attempt."""
    engine_key: str
    """Its id in the engine, another one for each attempt."""
    reports: list[EngineReport] = field(default_factory=list)
    has_reports: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when as many reports have come as the call became requests."""
    sent_s: float | None = None
    """When it was last sent to the engine."""
    first_bytes_s: float | None = None
    """When the first bytes of its streamed answer went out."""
    usage: Usage | None = None
    """The tokens that the answer states; read only where they are needed."""
    receipt: Receipt | None = None
    """Set when the call is settled."""

    @property
    def shown_program(self) -> str:
        """Return the program's id as its client knows it."""
        return self.request.tenant.shown(self.began.program_id)

    def engine_args(self) -> dict[str, str | float]:
        """Return what the engine's scheduler gets to know of the call, in `vllm_xargs`."""
        tenant, inherited = self.request.tenant, self.inherited
        args: dict[str, str | float] = {
            engine_args.PROGRAM: self.began.program_id,
            engine_args.CALL: self.engine_key,
            engine_args.THREAD: self.began.thread_id,
            engine_args.SERVICE_S: inherited.service_s,
            engine_args.WAIT_S: inherited.wait_s,
        }
        if inherited.program_service_s != inherited.service_s:
            args[engine_args.PROGRAM_SERVICE_S] = inherited.program_service_s
        if inherited.expected_s is not None:
            args[engine_args.EXPECTED_S] = inherited.expected_s
        if tenant.name:
            args[engine_args.TENANT] = tenant.name
            args[engine_args.WEIGHT] = tenant.weight
        if self.request.is_final:
            args[engine_args.LAST] = 1
        return args

    def receipt_of_reports(self) -> Receipt:
        """Return the receipt by the reports that have come."""
        return add_reports(
            self.began.call_id,
            self.shown_program,
            self.reports,
            queued_s=self.queued.wait_s,
            record_count=self.request.record_count,
        )


def make_arrival(key: str, request: CallRequest, inherited: Inherited) -> Arrival:
    """Return what the queue before an engine has to know."""
    return Arrival(
        key,
        request.identity.program,
        thread_id=request.identity.thread,
        tenant=request.tenant.name,
        weight=request.tenant.weight,
        service_s=inherited.program_service_s,
        wait_s=inherited.wait_s,
        inherited_s=inherited.service_s,
        expected_s=inherited.expected_s,
    )


def make_call_end(call: OpenCall, receipt: Receipt, outcome: Outcome) -> CallEnd:
    """Return what the store has to know of a settled call."""
    reports = call.reports
    return CallEnd(
        key=call.began.key,
        program_id=call.began.program_id,
        outcome=outcome.value,
        services_s=tuple(report.service_s for report in reports) or (receipt.service_s,),
        wait_s=receipt.wait_s,
        table_wait_s=call.queued.counted_wait_s + sum(report.table_wait_s for report in reports),
        # The engine's number is the one that was used; it may know more of a program than the gateway.
        inherited_service_s=max(
            (report.inherited_service_s for report in reports), default=call.began.entry_service_s
        ),
        is_estimated=receipt.estimated,
        level=receipt.level,
        preemptions=receipt.preemptions,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        output_tokens=receipt.output_tokens,
        is_final=call.request.is_final,
    )


def make_settled(
    call: OpenCall, receipt: Receipt, outcome: Outcome, now: float, *, ended_at_s: float
) -> CallSettled:
    """Return the fact that a call is settled."""
    is_reported = receipt.prompt_tokens is not None
    engine_time_s = 0.0 if call.sent_s is None else now - call.sent_s
    return CallSettled(
        call=call.began,
        at_s=now,
        facts=_make_facts(call, receipt, outcome, now, ended_at_s),
        body_bytes=call.request.body_bytes,
        record_count=call.request.record_count,
        usage=_exact_usage(call, receipt),
        engine_time_s=receipt.service_s if is_reported else engine_time_s,
    )


def _exact_usage(call: OpenCall, receipt: Receipt) -> Usage | None:
    # The report of each of several choices counts the whole prompt, the answer counts it once.
    is_report_exact = receipt.prompt_tokens is not None and call.request.record_count == 1
    if receipt.prompt_tokens is None or (call.usage is not None and not is_report_exact):
        return call.usage
    return Usage(receipt.prompt_tokens, receipt.output_tokens or 0, receipt.cached_tokens)


def _make_facts(
    call: OpenCall, receipt: Receipt, outcome: Outcome, now: float, ended_at_s: float
) -> CallFacts:
    request, identity = call.request, call.request.identity
    stated = call.usage if receipt.prompt_tokens is None else None
    return CallFacts(
        ended_at_s=ended_at_s,
        call_id=identity.call,
        program_id=call.shown_program,
        program_name=identity.name,
        session_id=None if identity.session is None else request.tenant.shown(identity.session),
        thread_id=identity.thread,
        parents=identity.parents,
        tenant=request.tenant.name,
        identity_source=identity.source,
        engine=call.engine,
        operation=request.facts.operation,
        model=request.facts.model,
        is_streaming=request.facts.is_streaming,
        outcome=outcome.value,
        duration_s=now - call.began.at_s,
        first_token_s=None if call.first_bytes_s is None else call.first_bytes_s - call.began.at_s,
        wait_s=receipt.wait_s,
        service_s=receipt.service_s,
        inherited_service_s=call.began.entry_service_s,
        level=receipt.level,
        preemptions=receipt.preemptions,
        demotions=receipt.demotions,
        promotions=receipt.promotions,
        prompt_tokens=stated.prompt_tokens if stated else receipt.prompt_tokens,
        cached_tokens=stated.cached_tokens if stated else receipt.cached_tokens,
        output_tokens=stated.completion_tokens if stated else receipt.output_tokens,
        is_estimated=receipt.estimated,
        is_final=identity.is_final,
        tools=identity.interceptions,
        traceparent=request.facts.traceparent,
    )
