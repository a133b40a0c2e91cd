"""One call between its beginning and its settlement, and its receipt. Only the registry changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from autellix_backend.core.arrival import Arrival
from autellix_backend.gateway.calls.body import CallBody
from autellix_backend.gateway.calls.dialects import Dialect
from autellix_backend.gateway.engines.queue import QueuedCall
from autellix_backend.gateway.identity.identity import Identity
from autellix_backend.gateway.lifecycle import CallBegan, CallSettled, Outcome, Usage
from autellix_backend.gateway.tenancy.tenants import Tenant
from autellix_backend.observe.call_facts import CallFacts
from autellix_backend.reports.report import EngineReport
from autellix_backend.stores.base import CallEnd, CallStart, Inherited
from autellix_wire import engine_args


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a call; None where only the engine could know and did not report."""

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

    def spliced_into(self, content: bytes) -> bytes:
        """Return a JSON object with the receipt as its last field; anything else stays as it is."""
        end = content.rstrip()
        if not (end.startswith(b"{") and end.endswith(b"}")):
            return content
        head = end[:-1]
        comma = b"" if head.rstrip().endswith(b"{") else b","
        return head + comma + b'"autellix":' + msgspec.json.encode(self) + b"}"

    def comment(self) -> bytes:
        """Return the receipt as an SSE comment."""
        return b": autellix " + msgspec.json.encode(self) + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A call as it arrives, identified."""

    dialect: Dialect
    tenant: Tenant
    identity: Identity
    """Program and session by the ids that the backend knows them by."""
    headers: Mapping[str, str]
    """By their lower-case names."""
    body: CallBody

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

    def arrival(self, key: str, inherited: Inherited) -> Arrival:
        """Return what the queue before an engine has to know."""
        return Arrival(
            key,
            self.identity.program,
            thread_id=self.identity.thread,
            tenant=self.tenant.name,
            weight=self.tenant.weight,
            service_s=inherited.program_service_s,
            wait_s=inherited.wait_s,
            inherited_s=inherited.service_s,
            expected_s=inherited.expected_s,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class OpenCall:
    """A call that has begun."""

    request: CallRequest
    began: CallBegan
    inherited: Inherited
    queued: QueuedCall
    """Its waiting in the queues before engines."""
    shown_program: str
    """The program's id as its client knows it."""
    is_final: bool
    """Whether its program ends with it."""
    engine: str
    """The engine that it is at, perhaps another one for each attempt."""
    engine_key: str
    """Its id in the engine, another one for each attempt."""
    rate_headers: Mapping[str, str] = field(default_factory=dict)
    """The headers about its tenant's rate limits."""
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
        if self.is_final:
            args[engine_args.LAST] = 1
        return args

    def estimated_receipt(self, service_s: float) -> Receipt:
        """Return the receipt of a call without reports."""
        return Receipt(
            call_id=self.began.call_id,
            program_id=self.shown_program,
            wait_s=self.queued.wait_s,
            service_s=service_s,
            estimated=True,
        )

    def reported_receipt(self) -> Receipt:
        """Add up the reports that have come; waits of parallel choices overlap, so the longest counts."""
        reports = self.reports
        return Receipt(
            call_id=self.began.call_id,
            program_id=self.shown_program,
            wait_s=self.queued.wait_s + max(report.wait_s for report in reports),
            service_s=sum(report.service_s for report in reports),
            preemptions=sum(report.preemptions for report in reports),
            demotions=sum(report.demotions for report in reports),
            promotions=sum(report.promotions for report in reports),
            level=max(report.level for report in reports),
            cached_tokens=sum(report.cached_tokens for report in reports),
            prompt_tokens=sum(report.prompt_tokens for report in reports),
            output_tokens=sum(report.output_tokens for report in reports),
            arrival_step=min(report.arrival_step for report in reports),
            finish_step=max(report.finish_step for report in reports),
            engine_steps=max(report.engine_steps for report in reports),
            estimated=len(reports) < self.request.body.record_count,
        )

    def end(self, receipt: Receipt, outcome: Outcome) -> CallEnd:
        """Return what the store has to know of the settled call."""
        reports = self.reports
        return CallEnd(
            key=self.began.key,
            program_id=self.began.program_id,
            outcome=outcome.value,
            services_s=tuple([report.service_s for report in reports]) or (receipt.service_s,),
            wait_s=receipt.wait_s,
            table_wait_s=self.queued.counted_wait_s + sum([report.table_wait_s for report in reports]),
            # The engine's number is the one that was used; it may know more of a program than the gateway.
            inherited_service_s=max(
                [report.inherited_service_s for report in reports], default=self.began.entry_service_s
            ),
            is_estimated=receipt.estimated,
            level=receipt.level,
            preemptions=receipt.preemptions,
            prompt_tokens=receipt.prompt_tokens,
            cached_tokens=receipt.cached_tokens,
            output_tokens=receipt.output_tokens,
            is_final=self.is_final,
        )

    def settled(self, receipt: Receipt, outcome: Outcome, now: float, *, ended_at_s: float) -> CallSettled:
        """Return the fact that the call is settled."""
        is_reported = receipt.prompt_tokens is not None
        engine_time_s = 0.0 if self.sent_s is None else now - self.sent_s
        return CallSettled(
            call=self.began,
            at_s=now,
            facts=self._facts(receipt, outcome, now, ended_at_s),
            body_bytes=self.request.body.size_bytes,
            record_count=self.request.body.record_count,
            usage=self._exact_usage(receipt),
            engine_time_s=receipt.service_s if is_reported else engine_time_s,
        )

    def _exact_usage(self, receipt: Receipt) -> Usage | None:
        # The report of each of several choices counts the whole prompt, the answer counts it once.
        is_report_exact = receipt.prompt_tokens is not None and self.request.body.record_count == 1
        if receipt.prompt_tokens is None or (self.usage is not None and not is_report_exact):
            return self.usage
        return Usage(receipt.prompt_tokens, receipt.output_tokens or 0, receipt.cached_tokens)

    def _facts(self, receipt: Receipt, outcome: Outcome, now: float, ended_at_s: float) -> CallFacts:
        request, identity, body = self.request, self.request.identity, self.request.body
        stated = self.usage if receipt.prompt_tokens is None else None
        return CallFacts(
            ended_at_s=ended_at_s,
            call_id=identity.call,
            program_id=self.shown_program,
            program_name=identity.name,
            session_id=None if identity.session is None else request.tenant.shown(identity.session),
            thread_id=identity.thread,
            parents=identity.parents,
            tenant=request.tenant.name,
            identity_source=identity.source,
            engine=self.engine,
            operation=request.dialect.operation,
            model=body.model,
            is_streaming=body.is_streaming,
            outcome=outcome.value,
            duration_s=now - self.began.at_s,
            first_token_s=None if self.first_bytes_s is None else self.first_bytes_s - self.began.at_s,
            wait_s=receipt.wait_s,
            service_s=receipt.service_s,
            inherited_service_s=self.began.entry_service_s,
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
            traceparent=request.headers.get("traceparent"),
        )


def open_call(
    request: CallRequest,
    inherited: Inherited,
    *,
    key: str,
    engine: str,
    at_s: float,
    level: int,
    entry_service_s: float,
    rate_headers: Mapping[str, str],
) -> OpenCall:
    """Return a call that has entered the process table; the arguments are as its fields and its fact's."""
    identity = request.identity
    began = CallBegan(
        key=key,
        at_s=at_s,
        call_id=identity.call,
        program_id=identity.program,
        program_name=identity.name,
        thread_id=identity.thread,
        parents=identity.parents,
        level=level,
        entry_service_s=entry_service_s,
    )
    return OpenCall(
        request=request,
        began=began,
        inherited=inherited,
        queued=QueuedCall(request.arrival(key, inherited)),
        shown_program=request.tenant.shown(identity.program),
        is_final=identity.is_final or identity.is_anonymous,
        engine=engine,
        engine_key=key,
        rate_headers=rate_headers,
    )
