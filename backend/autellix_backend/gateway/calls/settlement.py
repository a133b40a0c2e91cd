"""What a call comes to: its receipt, the record for those that follow calls, and what the store has to know.

Pure: the registry says when, and with what outcome.
"""

from __future__ import annotations

from typing import NamedTuple

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.gateway.calls.call import GatewayCall
from autellix_backend.gateway.engines.upstream import REQUEST_ID_HEADER
from autellix_backend.observe.settled_call import Outcome, SettledCall
from autellix_backend.reports.receipt import Receipt
from autellix_backend.stores.base import AnswerSource, CallEnd, call_key

BYTES_PER_TOKEN = 4
"""Bytes per token of an answer that states no usage."""


class Settlement(NamedTuple):
    """What a settled call leaves."""

    receipt: Receipt
    settled: SettledCall
    end: CallEnd
    """What the store has to know of it."""
    answer_ids: list[str]
    """The ids by which later calls are known to be its program's: its answer's, and its own."""


def settle(
    call: GatewayCall, outcome: Outcome, scheduler: SchedulerConfig, now: float, *, ended_at_s: float
) -> Settlement:
    """Return what a call leaves that ends now, in seconds on the gateway's clock and since 1970."""
    receipt = make_receipt(call, outcome, scheduler, now)
    return Settlement(
        receipt=receipt,
        settled=make_settled(call, receipt, outcome, now, ended_at_s),
        end=make_end(call, receipt, outcome),
        answer_ids=_answer_ids(call),
    )


def make_receipt(call: GatewayCall, outcome: Outcome, scheduler: SchedulerConfig, now: float) -> Receipt:
    """Add up the reports that have come; without any, estimate the service from the answer's tokens."""
    reports = call.reports
    if not reports:
        return Receipt(
            call_id=call.start.call_id,
            program_id=call.shown_program,
            wait_s=call.wait_s,
            service_s=_estimated_service_s(call, outcome, scheduler, now),
            estimated=True,
            inactive_s=call.inactive_s,
        )
    return Receipt(
        call_id=call.start.call_id,
        program_id=call.shown_program,
        # The waits of parallel choices overlap.
        wait_s=call.wait_s + max([report.wait_s for report in reports]),
        service_s=sum([report.service_s for report in reports]),
        preemptions=sum([report.preemptions for report in reports]),
        demotions=sum([report.demotions for report in reports]),
        promotions=sum([report.promotions for report in reports]),
        level=max([report.level for report in reports]),
        cached_tokens=sum([report.cached_tokens for report in reports]),
        prompt_tokens=sum([report.prompt_tokens for report in reports]),
        output_tokens=sum([report.output_tokens for report in reports]),
        arrival_step=min([report.arrival_step for report in reports]),
        finish_step=max([report.finish_step for report in reports]),
        engine_steps=max([report.engine_steps for report in reports]),
        estimated=len(reports) < call.request.body.record_count,
        inactive_s=call.inactive_s + max([report.inactive_s for report in reports]),
    )


def answer_source(call: GatewayCall) -> AnswerSource:
    """Return where a call's answer came from, for the calls that continue it."""
    return call.request.identity.answer_source(call.engine, calls_tools=bool(call.answer.asked_tools))


def _answer_ids(call: GatewayCall) -> list[str]:
    answer, identity = call.answer, call.request.identity
    ids = answer.tool_calls if answer.response_id is None else [answer.response_id, *answer.tool_calls]
    return ids if identity.implicit is None else [*ids, call_key(identity.call)]


def _price(call: GatewayCall, outcome: Outcome) -> int:
    """Return the tokens that a call costs: as reported, else as its answer states, else estimated.

    An engine that refused it, or was not there, did no work.
    """
    if call.reports:
        return sum([report.prompt_tokens + report.output_tokens for report in call.reports])
    if call.usage is not None:
        return call.usage.prompt_tokens + call.usage.output_tokens
    if _is_unserved(call, outcome):
        return 0
    answer = call.answer
    return call.assigned.demand.prompt_tokens + answer.streamed_events + answer.size_bytes // BYTES_PER_TOKEN


def _is_unserved(call: GatewayCall, outcome: Outcome) -> bool:
    is_gone = outcome in (Outcome.UNAVAILABLE, Outcome.ENGINE_ERROR) and not call.answer.streamed_events
    return call.sent_s is None or outcome is Outcome.REJECTED or is_gone


def _estimated_service_s(
    call: GatewayCall, outcome: Outcome, scheduler: SchedulerConfig, now: float
) -> float:
    """Return the nominal service of the answer's tokens, or of the estimated prompt and the stream.

    An aborted call ran for no longer than since it was sent, each of its requests.
    """
    if call.sent_s is None or _is_unserved(call, outcome):
        return 0.0
    service_s = scheduler.nominal_service_s(*_served_tokens(call))
    longest_s = (now - call.sent_s) * call.request.body.record_count
    return min(service_s, longest_s) if outcome is Outcome.ABORTED else service_s


def _served_tokens(call: GatewayCall) -> tuple[int, int]:
    """Return the prefilled and the decoded tokens, estimated where no usage has come."""
    if (usage := call.usage) is None:
        context = call.arrival.context
        return context.tokens if context else 0, call.answer.streamed_events
    return max(0, usage.prompt_tokens - (usage.cached_tokens or 0)), usage.output_tokens


def make_end(call: GatewayCall, receipt: Receipt, outcome: Outcome) -> CallEnd:
    """Return what the store has to know of a settled call."""
    reports = call.reports
    # A report has better numbers than the answer.
    usage = call.usage if not reports else None
    return CallEnd(
        key=call.start.key,
        program_id=call.start.program_id,
        outcome=outcome.value,
        services_s=tuple([report.service_s for report in reports]) or (receipt.service_s,),
        wait_s=receipt.wait_s,
        table_wait_s=call.counted_wait_s + sum([report.table_wait_s for report in reports]),
        # The engine's number is the one that was used; it may know more of a program than the gateway.
        inherited_service_s=max(
            [report.inherited_service_s for report in reports], default=call.inherited.service_s
        ),
        is_estimated=receipt.estimated,
        level=receipt.level,
        preemptions=receipt.preemptions,
        prompt_tokens=receipt.prompt_tokens if usage is None else usage.prompt_tokens,
        cached_tokens=receipt.cached_tokens if usage is None else usage.cached_tokens,
        output_tokens=receipt.output_tokens if usage is None else usage.output_tokens,
        is_final=call.request.identity.ends_program(
            offers_tools=call.request.body.offers_tools, has_tool_calls=bool(call.answer.tool_calls)
        ),
    )


def make_settled(
    call: GatewayCall, receipt: Receipt, outcome: Outcome, now: float, ended_at_s: float
) -> SettledCall:
    """Return the record of a settled call."""
    request, answer = call.request, call.answer
    identity, body, headers = request.identity, request.body, request.headers
    runs, prefilled_s = _runs(call)
    return SettledCall(
        start=call.start,
        receipt=receipt,
        outcome=outcome,
        status=answer.status,
        reason=answer.reason,
        began_s=call.began_s,
        settled_s=now,
        ended_at_s=ended_at_s,
        session_id=None if identity.session is None else request.tenant.shown(identity.session),
        tenant=request.tenant.name,
        identity_source=identity.source,
        engine=call.assigned.handle.name,
        operation=request.dialect.operation,
        model=body.model,
        is_streaming=body.is_streaming,
        body_bytes=body.size_bytes,
        record_count=body.record_count,
        first_token_s=None if answer.first_bytes_s is None else answer.first_bytes_s - call.began_s,
        sent_for_s=0.0 if call.sent_s is None else now - call.sent_s,
        runs=runs,
        prefilled_s=prefilled_s,
        inherited_service_s=call.inherited.service_s,
        stated_usage=call.usage,
        streamed_events=answer.streamed_events,
        price_tokens=_price(call, outcome),
        is_final=identity.is_final,
        asked_tools=tuple(answer.asked_tools),
        traceparent=headers.get("traceparent"),
        request_id=headers.get(REQUEST_ID_HEADER),
    )


def _runs(call: GatewayCall) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """Return a call's runs in the engine, and the end of its prefill, in seconds from its arrival here."""
    # Parallel choices run at times of their own, which make no one line.
    if len(call.reports) != 1 or call.sent_s is None:
        return (), None
    [report], sent_for_s = call.reports, call.sent_s - call.began_s
    prefilled_s = None if report.prefilled_s is None else sent_for_s + report.prefilled_s
    return tuple((sent_for_s + start, sent_for_s + end) for start, end in report.runs), prefilled_s
