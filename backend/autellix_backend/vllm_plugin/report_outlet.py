"""Sends an engine's reports and snapshots: to the gateway on this machine, and over the network to others."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.reports.link import EngineFacts
from autellix_backend.vllm_plugin.report_sender import ReportSender
from autellix_backend.vllm_plugin.report_server import ReportServer


class ReportOutlet:
    """Sends each report to the gateway that sent its call, and snapshots to all; never blocks."""

    def __init__(self, path: str | None) -> None:
        """Note the socket of the gateway that has started the engine, if one has."""
        self._local = ReportSender(path)
        self.server: ReportServer | None = None

    def listen(self, address: str, secret: str | None, facts: Callable[[], EngineFacts]) -> None:
        """Let other gateways connect; the arguments are those of ReportServer."""
        self.server = ReportServer(address, secret, facts)

    @property
    def is_enabled(self) -> bool:
        """Whether there is anybody to send to."""
        return self._local.is_enabled or (self.server is not None and self.server.has_gateways)

    @property
    def dropped_records(self) -> int:
        """The messages that could not be sent so far."""
        return self._local.dropped_records + (self.server.dropped_records if self.server else 0)

    def send(self, report: bytes, gateway: str = "") -> None:
        """Send a report to a gateway, or to the one on this machine."""
        if gateway and self.server is not None and self.server.is_connected(gateway):
            self.server.send(gateway, report)
        else:
            self._local.send(report)

    def offer(self, snapshot: bytes, *, is_last: bool = False) -> None:
        """Send a snapshot to all gateways that have room for it, as the next one replaces it.

        Args:
            snapshot: The message.
            is_last: Whether none comes soon that replaces it: then it waits for room.
        """
        if is_last:
            self._local.send(snapshot)
        else:
            self._local.offer(snapshot)
        if self.server is not None and self.server.has_gateways:
            self.server.broadcast(snapshot)

    def close(self) -> None:
        """Close the socket and the port; later reports go to the socket, which is opened again."""
        self._local.close()
        if self.server is not None:
            self.server.close()
            self.server = None
