"""Reads what engines send over report links: reports of requests, and snapshots of queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autellix_backend.reports.decoding import ReportError
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot


@dataclass(frozen=True, slots=True)
class ReportDecoder:
    """Decodes messages; `on_malformed` is called for one that is neither a report nor a snapshot."""

    on_report: Callable[[EngineReport], None]
    on_malformed: Callable[[], None]
    on_snapshot: Callable[[EngineSnapshot], None]

    def __call__(self, message: bytes) -> None:
        """Decode a message."""
        try:
            if EngineSnapshot.is_one(message):
                self.on_snapshot(EngineSnapshot.from_bytes(message))
            else:
                self.on_report(EngineReport.from_bytes(message))
        except ReportError:
            self.on_malformed()
