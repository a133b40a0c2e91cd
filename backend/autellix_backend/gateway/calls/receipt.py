"""What a call cost, as its client gets it: added up from the engine's reports, or estimated without them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from autellix_backend.reports.report import EngineReport


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


def add_reports(
    call_id: str, program_id: str, reports: Sequence[EngineReport], *, queued_s: float, record_count: int
) -> Receipt:
    """Return the receipt of a call with reports; waits of parallel choices overlap, so the longest counts.

    Args:
        call_id: The client's id of the call.
        program_id: The client's id of the program.
        reports: One or more.
        queued_s: How long the call was queued at the gateway.
        record_count: How many reports a complete receipt needs.
    """
    return Receipt(
        call_id=call_id,
        program_id=program_id,
        wait_s=queued_s + max(report.wait_s for report in reports),
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
        estimated=len(reports) < record_count,
    )


def splice_receipt(content: bytes, receipt: Receipt) -> bytes:
    """Add the receipt as the last field of a JSON object; anything else stays as it is."""
    end = content.rstrip()
    if not (end.startswith(b"{") and end.endswith(b"}")):
        return content
    head = end[:-1]
    comma = b"" if head.rstrip().endswith(b"{") else b","
    return head + comma + b'"autellix":' + msgspec.json.encode(receipt) + b"}"


def receipt_comment(receipt: Receipt) -> bytes:
    """Return the receipt as an SSE comment."""
    return b": autellix " + msgspec.json.encode(receipt) + b"\n\n"
