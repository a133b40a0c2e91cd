"""Receiver of an engine's datagrams: one report per finished request, and snapshots of its queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autellix_backend.engines.datagrams import DatagramReceiver
from autellix_backend.reports.errors import ReportError
from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot


class ReportReceiver(DatagramReceiver):
    """Decodes datagrams; `on_malformed` is called for one that is neither a report nor a snapshot."""

    def __init__(
        self,
        path: Path,
        on_report: Callable[[EngineReport], None],
        on_malformed: Callable[[], None],
        on_snapshot: Callable[[EngineSnapshot], None],
    ) -> None:
        super().__init__(path, self._decode)
        self._on_report = on_report
        self._on_snapshot = on_snapshot
        self._on_malformed = on_malformed

    def _decode(self, datagram: bytes) -> None:
        try:
            if EngineSnapshot.is_one(datagram):
                self._on_snapshot(EngineSnapshot.from_bytes(datagram))
            else:
                self._on_report(EngineReport.from_bytes(datagram))
        except ReportError:
            self._on_malformed()
