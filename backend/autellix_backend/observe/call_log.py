"""The log of settled calls, one JSON line each."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from autellix_backend.observe.line_writer import LineWriter
from autellix_backend.observe.settled_call import SettledCall

MAX_PENDING = 10_000

# Microseconds.
_DIGITS = 6


def make_call_log(path: Path, registry: CollectorRegistry) -> LineWriter[SettledCall]:
    """Return a writer of settled calls.

    Raises:
        SettingsError: if the file cannot be written.
    """
    lines = Counter(
        "autellix_call_log_lines",
        "Lines of the call log: written, dropped or failed.",
        ("result",),
        registry=registry,
    )
    return LineWriter(path, line_of, lines, setting="observe.call_log", max_pending=MAX_PENDING)


def line_of(call: SettledCall) -> str:
    """Return a call as one line of JSON, its time first."""
    start, receipt, usage = call.start, call.receipt, call.answer_usage
    ended_at = datetime.datetime.fromtimestamp(call.ended_at_s, datetime.UTC)
    line = {
        "time": ended_at.isoformat(timespec="microseconds"),
        "event": "call",
        "call_id": start.call_id,
        "program_id": receipt.program_id,
        "program_name": start.name,
        "session_id": call.session_id,
        "thread_id": start.thread_id,
        "parents": start.parents,
        "tenant": call.tenant,
        "identity_source": call.identity_source,
        "engine": call.engine,
        "operation": call.operation,
        "model": call.model,
        "is_streaming": call.is_streaming,
        "outcome": call.outcome,
        "duration_s": call.duration_s,
        "first_token_s": call.first_token_s,
        "wait_s": receipt.wait_s,
        "service_s": receipt.service_s,
        "inherited_service_s": call.inherited_service_s,
        "level": receipt.level,
        "preemptions": receipt.preemptions,
        "demotions": receipt.demotions,
        "promotions": receipt.promotions,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "is_estimated": receipt.estimated,
        "is_final": call.is_final,
        "tools": [{"name": name, "duration_s": duration_s} for name, duration_s in start.interceptions],
        "trace_id": call.trace_id,
    }
    rounded = {
        name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in line.items()
    }
    return json.dumps(rounded, separators=(",", ":")) + "\n"
