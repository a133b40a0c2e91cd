"""Where OpenTelemetry data go: our setting, else OpenTelemetry's own variables."""

from __future__ import annotations

import sys

import pytest

from autellix_backend.observe.otlp import check_installed, endpoint_of
from autellix_backend.settings import SettingsError

ALL = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"


@pytest.mark.parametrize(
    ("setting", "environment", "traces", "metrics"),
    [
        (None, {}, None, None),
        ("http://a:1/", {}, "http://a:1/v1/traces", "http://a:1/v1/metrics"),
        ("http://a:1/v1/traces", {ALL: "http://b:1"}, "http://a:1/v1/traces", None),
        ("http://a:1/v1/metrics/", {ALL: "http://b:1"}, None, "http://a:1/v1/metrics"),
        (None, {ALL: "http://b:1/"}, "http://b:1/v1/traces", "http://b:1/v1/metrics"),
        (None, {TRACES: "http://b:1/x"}, "http://b:1/x", None),
        (None, {METRICS: "http://b:1/x"}, None, "http://b:1/x"),
        (None, {ALL: "http://b:1", METRICS: "http://c:1"}, "http://b:1/v1/traces", "http://c:1"),
        ("http://a:1", {"OTEL_SDK_DISABLED": "true"}, None, None),
        ("http://a:1", {"OTEL_TRACES_EXPORTER": "none"}, None, "http://a:1/v1/metrics"),
        ("http://a:1", {"OTEL_METRICS_EXPORTER": "none"}, "http://a:1/v1/traces", None),
    ],
)
def test_the_environment_says_where_data_go_if_the_setting_does_not(
    setting: str | None, environment: dict[str, str], traces: str | None, metrics: str | None
) -> None:
    assert endpoint_of("traces", setting, environment) == traces
    assert endpoint_of("metrics", setting, environment) == metrics


@pytest.mark.parametrize("kind", ["trace", "metric"])
def test_without_the_extra_the_setting_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{kind}_exporter", None)

    with pytest.raises(SettingsError, match=r"otlp_endpoint: needs opentelemetry.*autellix-backend\[otel\]"):
        check_installed("http://a:1", {})
    check_installed(None, {})
