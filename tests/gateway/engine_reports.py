"""Reports of calls, as engines send them, for tests."""

from __future__ import annotations

from autellix_backend.reports.report import EngineReport


def report_of(key: str) -> EngineReport:
    """Return a report of a call with this key that ended well."""
    return EngineReport(
        call_id=key,
        program_id="p",
        thread_id="0",
        arrival_s=0.0,
        finish_s=1.0,
        wait_s=0.5,
        table_wait_s=0.5,
        service_s=0.5,
        level=1,
        preemptions=0,
        demotions=0,
        promotions=0,
        inherited_service_s=0.0,
        is_aborted=False,
        request_id="r",
        prompt_tokens=1,
        output_tokens=2,
        cached_tokens=0,
        arrival_step=0,
        finish_step=2,
        engine_steps=2,
        finish_reason="stop",
    )
