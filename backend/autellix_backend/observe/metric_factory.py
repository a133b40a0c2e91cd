"""How metrics are created and collected."""

from __future__ import annotations

from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

LATENCY_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

M = TypeVar("M", bound=MetricWrapperBase)


class MetricFactory:
    """Creates metrics in one registry and removes the series of engines that leave."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of_engines: list[MetricWrapperBase] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Create `autellix_NAME_total`."""
        return self._add(Counter("autellix_" + name, text, labels, registry=self.registry), labels)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Create `autellix_NAME`."""
        return self._add(Gauge("autellix_" + name, text, labels, registry=self.registry), labels)

    def latency(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = LATENCY_BUCKETS_S
    ) -> Histogram:
        """Create the histogram `autellix_NAME`, of seconds."""
        histogram = Histogram("autellix_" + name, text, labels, buckets=buckets, registry=self.registry)
        return self._add(histogram, labels)

    def forget_engine(self, engine: str) -> None:
        """Remove the series of an engine."""
        for metric in self._of_engines:
            metric.remove_by_labels({"engine": engine})

    def _add(self, metric: M, labels: tuple[str, ...]) -> M:
        if "engine" in labels:
            self._of_engines.append(metric)
        return metric
