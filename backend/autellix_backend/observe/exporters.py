"""The exporters of settled calls that the settings ask for: the call log and the tracer."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.tracing import CallTracer, make_tracer
from autellix_backend.settings import ObserveSettings


class CallExporters:
    """The wanted exporters, opened and closed together."""

    def __init__(self, settings: ObserveSettings, registry: CollectorRegistry) -> None:
        """Create the exporters.

        Raises:
            SettingsError: if the log cannot be written, or the extra for traces is not installed.
        """
        self._log = None if settings.call_log is None else CallLog(settings.call_log, registry)
        self._tracer: CallTracer | None = None
        if settings.otlp_endpoint is not None:
            self._tracer = make_tracer(settings.otlp_endpoint)

    @property
    def sinks(self) -> list[Callable[[SettledCall], None]]:
        """Return the functions that take the facts of each call."""
        return [one.take for one in (self._log, self._tracer) if one is not None]

    def open(self) -> None:
        """Start writing."""
        if self._log is not None:
            self._log.open()

    def close(self) -> None:
        """Write what is pending, within a bound; blocks meanwhile."""
        for one in (self._log, self._tracer):
            if one is not None:
                one.close()
