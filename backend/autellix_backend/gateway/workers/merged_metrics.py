"""The metrics of several workers on one page.

Counters never decrease: the counts of an ended worker stay in the sums, and a worker that does not answer in
time keeps its last counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest

from autellix_backend.observe.metric_families import Merge, MetricFamily

WORKER_UP = "autellix_worker_up"
WORKER = "worker"
_CREATED = "_created"
_COUNTED = frozenset({"counter", "histogram"})

_JOIN: Mapping[Merge, Callable[[float, float], float]] = {
    Merge.SUM: lambda left, right: left + right,
    Merge.LEAST: min,
    Merge.MOST: max,
}


def merge(pages: Iterable[tuple[int, Sequence[MetricFamily]]]) -> list[MetricFamily]:
    """Return the metrics of several workers as one; those of a process get a label with its number."""
    found: dict[str, MetricFamily] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for worker, families in pages:
        for family in families:
            found.setdefault(family.name, family)
            of_family = values.setdefault(family.name, {})
            own = ((WORKER, str(worker)),) if family.merge is Merge.EACH else ()
            for name, labels, value in family.samples:
                key = (name, (*labels, *own))
                if key in of_family:
                    join = min if name.endswith(_CREATED) else _JOIN[family.merge]
                    value = join(of_family[key], value)
                of_family[key] = value
    return [
        msgspec.structs.replace(family, samples=[(*key, value) for key, value in values[name].items()])
        for name, family in found.items()
    ]


class MetricsOfWorkers:
    """Merges the metrics of the workers of one address, ended ones included."""

    def __init__(self) -> None:
        self._last: dict[int, list[MetricFamily]] = {}
        """The last metrics of each running worker."""
        self._ended: list[MetricFamily] = []

    def on_ended(self, worker: int) -> None:
        """Keep the counts of a worker that has ended."""
        self._ended = merge([(0, self._ended), (0, _counted(self._last.pop(worker, [])))])

    def page(self, answers: Mapping[int, list[MetricFamily] | None]) -> bytes:
        """Return the page of all workers in Prometheus' text format.

        Args:
            answers: Each expected worker's metrics by its number; None for one that did not answer.
        """
        shown: list[tuple[int, list[MetricFamily]]] = [(0, self._ended)]
        for worker, families in sorted(answers.items()):
            if families is None:
                shown.append((worker, _counted(self._last.get(worker, []))))
            else:
                self._last[worker] = families
                shown.append((worker, families))
        return generate_latest(_Page([*merge(shown), _workers_up(answers)]))


class _Page(CollectorRegistry):
    """A registry of merged metrics, for rendering."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for sample, labels, value in family.samples:
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _workers_up(answers: Mapping[int, object | None]) -> MetricFamily:
    return MetricFamily(
        name=WORKER_UP,
        text="Whether the worker answers.",
        kind="gauge",
        merge=Merge.EACH,
        samples=[
            (WORKER_UP, ((WORKER, str(worker)),), float(answer is not None))
            for worker, answer in sorted(answers.items())
        ],
    )


def _counted(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    return [family for family in families if family.kind in _COUNTED and family.merge is not Merge.EACH]
