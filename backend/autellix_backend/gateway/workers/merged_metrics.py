"""The metrics of several workers as one page: sums, and by what else a value of all of them is known.

A counter never goes back: what a worker that has ended had counted stays in the sums, and one that does not
answer in time counts as it did last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest

from autellix_backend.observe.metrics import Merge, MetricFamily

WORKER_UP = "autellix_worker_up"
WORKER = "worker"
_CREATED = "_created"
_COUNTED = frozenset({"counter", "histogram"})

Labels = tuple[tuple[str, str], ...]
_JOIN: Mapping[Merge, Callable[[float, float], float]] = {
    Merge.SUM: lambda left, right: left + right,
    Merge.LEAST: min,
    Merge.MOST: max,
}


@dataclass(slots=True)
class MergedFamily:
    """One metric of all workers."""

    text: str
    kind: str
    merge: Merge
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def add(self, name: str, labels: Labels, value: float) -> None:
        """Join the value of one worker."""
        key = (name, labels)
        known = self.samples.get(key)
        merge = Merge.LEAST if name.endswith(_CREATED) else self.merge
        self.samples[key] = value if known is None else _JOIN[merge](known, value)


def merge(pages: Iterable[tuple[int, Sequence[MetricFamily]]]) -> dict[str, MergedFamily]:
    """Return the metrics of several workers as one, by name; what belongs to one process has its number."""
    found: dict[str, MergedFamily] = {}
    for worker, families in pages:
        for family in families:
            into = found.setdefault(family.name, MergedFamily(family.text, family.kind, family.merge))
            is_own = family.merge is Merge.EACH
            for name, labels, value in family.samples:
                into.add(name, (*labels, (WORKER, str(worker))) if is_own else labels, value)
    return found


class MetricsOfWorkers:
    """What the workers of one address have counted, those that have ended included."""

    def __init__(self) -> None:
        self._last: dict[int, list[MetricFamily]] = {}
        """What each worker that runs showed last."""
        self._ended: list[MetricFamily] = []

    def on_ended(self, worker: int) -> None:
        """Keep what a worker had counted."""
        families = _counted(self._last.pop(worker, []))
        merged = merge([(0, self._ended), (0, families)])
        self._ended = [
            MetricFamily(
                name=name,
                text=family.text,
                kind=family.kind,
                merge=family.merge,
                samples=[(*key, value) for key, value in family.samples.items()],
            )
            for name, family in merged.items()
        ]

    def page(self, answers: Mapping[int, list[MetricFamily] | None]) -> bytes:
        """Return the page of all workers in Prometheus' text format.

        Args:
            answers: What each worker that should run shows, by its number; None for one that did not answer.
        """
        shown: list[tuple[int, list[MetricFamily]]] = [(0, self._ended)]
        for worker, families in sorted(answers.items()):
            if families is None:
                shown.append((worker, _counted(self._last.get(worker, []))))
            else:
                self._last[worker] = families
                shown.append((worker, families))
        merged = merge(shown)
        merged[WORKER_UP] = up = MergedFamily("Whether the worker answers.", "gauge", Merge.MOST)
        for worker, families in sorted(answers.items()):
            up.add(WORKER_UP, ((WORKER, str(worker)),), float(families is not None))
        return generate_latest(_Page(merged))


class _Page(CollectorRegistry):
    """A registry of merged metrics, to be rendered."""

    def __init__(self, families: Mapping[str, MergedFamily]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.text, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _counted(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    return [family for family in families if family.kind in _COUNTED and family.merge is not Merge.EACH]


def decode_families(content: object) -> list[MetricFamily]:
    """Return a worker's metrics as they came over its link."""
    return msgspec.convert(content, list[MetricFamily])
