"""What engines send, decoded."""

from __future__ import annotations

from tests.gateway.engine_reports import report_of

from autellix_backend.gateway.engines.report_receiver import ReportDecoder
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot

REPORT = report_of("c")
SNAPSHOT = EngineSnapshot(
    step=1,
    mean_step_s=None,
    running=0,
    waiting=0,
    slots=4,
    kv_used_blocks=0,
    kv_total_blocks=8,
    kv_block_tokens=16,
    is_block_short=False,
    level_calls=(0, 0),
    calls=(),
)


def test_reports_and_snapshots_are_told_apart_and_malformed_messages_counted() -> None:
    received: list[EngineReport] = []
    snapshots: list[EngineSnapshot] = []
    malformed: list[None] = []
    decode = ReportDecoder(received.append, lambda: malformed.append(None), snapshots.append)
    for message in (REPORT.to_bytes(), b"{}", b"\xff", b"[]", SNAPSHOT.to_bytes(), SNAPSHOT.to_bytes()[:-1]):
        decode(message)
    assert (received, snapshots, len(malformed)) == ([REPORT], [SNAPSHOT], 4)
