"""The destination and the sender of OpenTelemetry data, by our setting, else by OpenTelemetry's variables."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from autellix_backend.install import pip_install
from autellix_backend.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SERVICE_NAME = "autellix"
SHUTDOWN_TIMEOUT_MS = 5000

Signal = Literal["traces", "metrics"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics")
_EXPORTERS = {
    "traces": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter"),
    "metrics": ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OTLPMetricExporter"),
}


def endpoint_of(signal: Signal, endpoint: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the URL that receives a signal; None if it is not sent.

    Args:
        signal: The kind of data.
        endpoint: Our setting: the address of a collector, or its address for one signal.
        environment: The environment, for OpenTelemetry's variables where the setting is unset.
    """
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or environment.get(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return None
    if endpoint is not None:
        url = endpoint.rstrip("/")
        named = [each for each in SIGNALS if url.endswith(_path(each))]
        if not named:
            return url + _path(signal)
        return url if named == [signal] else None
    if own := environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"):
        return own
    of_all = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return of_all.rstrip("/") + _path(signal) if of_all else None


def check_installed(endpoint: str | None, environment: Mapping[str, str]) -> None:
    """Check that the packages that send data are installed if any signal is sent.

    Raises:
        SettingsError: if the extra is not installed.
    """
    if all(endpoint_of(signal, endpoint, environment) is None for signal in SIGNALS):
        return
    try:
        importlib.import_module("opentelemetry.sdk.trace.export")
        for module, _ in _EXPORTERS.values():
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError("observe.otlp_endpoint", f"needs {error.name}", pip_install("otel")) from error


def make_exporter(signal: Signal, endpoint: str | None, environment: Mapping[str, str]) -> Any:
    """Return OpenTelemetry's exporter of a signal over HTTP; None if it is not sent.

    Args:
        signal: The kind of data.
        endpoint: Our setting, as in endpoint_of().
        environment: The environment, for OpenTelemetry's own variables.

    Raises:
        SettingsError: if the extra is not installed.
    """
    url = endpoint_of(signal, endpoint, environment)
    if url is None:
        return None
    check_installed(endpoint, environment)
    module, name = _EXPORTERS[signal]
    return getattr(importlib.import_module(module), name)(endpoint=url)


def service_resource() -> Resource:
    """Return the sender's name and attributes; those of the environment override ours."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect())


def _path(signal: Signal) -> str:
    return f"/v1/{signal}"
