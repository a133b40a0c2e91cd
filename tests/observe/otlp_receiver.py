"""An OTLP collector for tests: keeps what is posted to it, as protobuf messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS: dict[str, Any] = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/traces": ExportTraceServiceRequest}


class OtlpReceiver(ThreadingHTTPServer):
    """The collector, on a free port of loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _OtlpHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        """Path, headers and message of each request."""

    def metrics(self) -> dict[str, Any]:
        """Return the metrics that were received last, by name."""
        return {
            metric.name: metric
            for path, _, message in self.requests
            if path == "/v1/metrics"
            for of_resource in message.resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
        }

    def spans(self) -> list[str]:
        """Return the names of the spans that were received."""
        return [
            span.name
            for path, _, message in self.requests
            if path == "/v1/traces"
            for of_resource in message.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class _OtlpHandler(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        message = _KINDS[self.path].FromString(content)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, message))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the tests' output free of requests."""


@contextlib.contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """Run a collector."""
    with OtlpReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, name="otlp-receiver", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
