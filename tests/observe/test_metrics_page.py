"""The page of metrics says what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from autellix_backend.observe.call_log import CallLog
from autellix_backend.observe.metrics import GatewayMetrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(autellix_\w+)(?:\{([\w,]+)\})?`(?: (histogram))? \| \S.* \|$", re.MULTILINE)

SUFFIXES = {"counter": "_total", "info": "_info"}

Row = tuple[str, tuple[str, ...]]


def documented() -> dict[str, Row]:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {
        name: (kind or kind_of(name), tuple(labels.split(",")) if labels else ())
        for name, labels, kind in rows
    }


def kind_of(name: str) -> str:
    """Return the kind of a metric that is no histogram, by the page's rule."""
    return next((kind for kind, suffix in SUFFIXES.items() if name.endswith(suffix)), "gauge")


def registered(registry: CollectorRegistry) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for collector in list(registry._collector_to_names):
        if isinstance(collector, ProcessCollector):
            continue
        assert isinstance(collector, MetricWrapperBase)
        assert collector._type is not None
        name = collector._name + SUFFIXES.get(collector._type, "")
        found[name] = (collector._type, tuple(collector._labelnames))
    return found


@pytest.fixture
def registry(tmp_path: Path) -> CollectorRegistry:
    """Every metric that a gateway can have."""
    metrics = GatewayMetrics()
    CallLog(tmp_path / "calls.jsonl", metrics.registry)
    return metrics.registry


def test_every_metric_is_documented_with_its_kind_and_labels(registry: CollectorRegistry) -> None:
    assert registered(registry) == documented()


def test_no_label_is_an_id(registry: CollectorRegistry) -> None:
    labels = {label for _, names in registered(registry).values() for label in names}

    assert not {label for label in labels if label.endswith("id") or label in ("program", "call", "session")}


def test_names_follow_the_conventions(registry: CollectorRegistry) -> None:
    """Base units, and the suffix of counters."""
    for name, (kind, _) in registered(registry).items():
        assert name.endswith("_total") is (kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|minutes|s)$", name), name
