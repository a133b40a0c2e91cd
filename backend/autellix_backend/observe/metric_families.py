"""How metrics are created and collected in one process, and merged over several."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.metrics import MetricWrapperBase

LATENCY_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

M = TypeVar("M", bound=MetricWrapperBase)


class Merge(StrEnum):
    """How the values of several workers are merged."""

    SUM = "sum"
    """Each worker has a part."""
    LEAST = "least"
    MOST = "most"
    """Each worker knows the whole (engines, the process table); an older value is lower."""
    EACH = "each"
    """The value belongs to the process."""


_MERGES = {"counter": Merge.SUM, "histogram": Merge.SUM}


class MetricFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One metric's values in one worker, as plain data."""

    name: str
    text: str
    kind: str
    """Prometheus' type."""
    merge: Merge
    samples: list[tuple[str, tuple[tuple[str, str], ...], float]]
    """Name, labels and value of each."""


class MetricFactory:
    """Creates metrics in one registry and removes the series of engines that leave."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._merges: dict[str, Merge] = {}
        """How metrics are merged, by name; others are merged by type."""
        self._of_engines: list[MetricWrapperBase] = []

    def counter(self, name: str, text: str, *labels: str, merge: Merge = Merge.SUM) -> Counter:
        """Create `autellix_NAME_total`."""
        self._merges["autellix_" + name] = merge
        return self._add(Counter("autellix_" + name, text, labels, registry=self.registry), labels)

    def gauge(self, name: str, text: str, *labels: str, merge: Merge = Merge.MOST) -> Gauge:
        """Create `autellix_NAME`."""
        self._merges["autellix_" + name] = merge
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

    def families(self) -> list[MetricFamily]:
        """Return all metrics as plain data, to be merged with those of other workers."""
        return [
            MetricFamily(
                name=metric.name,
                text=metric.documentation,
                kind=metric.type,
                merge=self._merge_of(metric),
                samples=[
                    (sample.name, tuple(sample.labels.items()), sample.value) for sample in metric.samples
                ],
            )
            for metric in self.registry.collect()
        ]

    def _add(self, metric: M, labels: tuple[str, ...]) -> M:
        if "engine" in labels:
            self._of_engines.append(metric)
        return metric

    def _merge_of(self, metric: Metric) -> Merge:
        if metric.name.startswith("process_"):
            return Merge.EACH
        return self._merges.get(metric.name, _MERGES.get(metric.type, Merge.MOST))
