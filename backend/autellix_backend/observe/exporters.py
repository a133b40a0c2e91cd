"""The exporters of settled calls that the settings ask for: the call log and the tracer."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from autellix_backend.observe.call_log import make_call_log
from autellix_backend.observe.settled_call import SettledCall
from autellix_backend.observe.tracing import make_tracer
from autellix_backend.settings import ObserveSettings

CLOSE_TIMEOUT_S = 5.0


class CallExporters:
    """The wanted exporters, opened and closed together."""

    def __init__(self, settings: ObserveSettings, registry: CollectorRegistry) -> None:
        """Create the exporters.

        Raises:
            SettingsError: if the log cannot be written, or the extra for traces is not installed.
        """
        path, endpoint = settings.call_log, settings.otlp_endpoint
        self._log = None if path is None else make_call_log(path, registry)
        self._tracer = None if endpoint is None else make_tracer(endpoint)

    @property
    def sinks(self) -> list[Callable[[SettledCall], None]]:
        """Return the functions that take each settled call."""
        log, tracer = self._log, self._tracer
        return [*([log.put] if log else []), *([tracer.take] if tracer else [])]

    def open(self) -> None:
        """Start writing."""
        if self._log is not None:
            self._log.open()

    def close(self) -> None:
        """Write what is pending, within a bound; blocks meanwhile."""
        if self._log is not None:
            self._log.close(CLOSE_TIMEOUT_S)
        if self._tracer is not None:
            self._tracer.close()
