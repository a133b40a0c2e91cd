"""Reads what engines send over sockets and report links: reports of requests, and snapshots of queues."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.reports.errors import ReportError
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot


class ReportDecoder:
    """Decodes messages; `on_malformed` is called for one that is neither a report nor a snapshot."""

    def __init__(
        self,
        on_report: Callable[[EngineReport], None],
        on_malformed: Callable[[], None],
        on_snapshot: Callable[[EngineSnapshot], None],
    ) -> None:
        self._on_report = on_report
        self._on_snapshot = on_snapshot
        self._on_malformed = on_malformed

    def __call__(self, message: bytes) -> None:
        """Decode a message."""
        try:
            if EngineSnapshot.is_one(message):
                self._on_snapshot(EngineSnapshot.from_bytes(message))
            else:
                self._on_report(EngineReport.from_bytes(message))
        except ReportError:
            self._on_malformed()
