"""Dashboards and alert rules ask only for metrics and labels that a gateway has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from autellix_backend.observe.call_log import STANDARD_ERROR, CallLog
from autellix_backend.observe.metrics import GatewayMetrics

promql_parser = pytest.importorskip("promql_parser")

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = ("programs.json", "engines.json")
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "histogram": ("_bucket", "_count", "_sum"),
}
OF_SCRAPES = {"instance", "job"}
OF_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def known() -> dict[str, set[str]]:
    """Return the labels of each series that a gateway can have."""
    found = {name: set(OF_SCRAPES) for name in OF_PROCESS}
    metrics = GatewayMetrics()
    CallLog(STANDARD_ERROR, metrics.registry)
    for collector in list(metrics.registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            assert collector._type is not None
            for suffix in SUFFIXES[collector._type]:
                labels = {"le"} if suffix == "_bucket" else {"version"} if suffix == "_info" else set[str]()
                found[collector._name + suffix] = {*labels, *collector._labelnames, *OF_SCRAPES}
    return found


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[str]:
    for name in DASHBOARDS:
        for panel in dashboard(name)["panels"]:
            yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def problem(query: str, series: dict[str, set[str]]) -> str | None:
    """Return what is wrong with a query."""
    try:
        promql_parser.parse(query.replace("$__rate_interval", "5m"))
    except ValueError as error:
        return str(error)
    names = set(re.findall(r"\b(?:autellix|process)_\w+", query))
    if not names or not names <= series.keys():
        return f"no such metric: {sorted(names - series.keys())}"
    of_names = set.union(*(series[name] for name in names))
    matched = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query)
    grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query)
    used = {*matched, *(label.strip() for group in grouped for label in group.split(","))}
    return None if used <= of_names else f"no such label: {sorted(used - of_names)}"


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_queries_name_what_there_is(query: str) -> None:
    assert problem(query, known()) is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sum(rate(autellix_calls_total[5m])", "paren"),
        ("autellix_missing", "no such metric"),
        ("sum by (shelf) (autellix_engine_up)", "no such label"),
        ('autellix_engine_up{shelf="a"}', "no such label"),
    ],
)
def test_a_wrong_query_is_found(query: str, expected: str) -> None:
    assert expected in (problem(query, known()) or "")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    """What Grafana needs: an id, a data source to choose, and panels with places of their own."""
    found = dashboard(name)
    panels = found["panels"]

    assert found["uid"].startswith("autellix-")
    assert [each["type"] for each in found["templating"]["list"]] == ["datasource"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in panels)


def test_legends_name_labels_that_the_query_keeps() -> None:
    series = known()
    for name in DASHBOARDS:
        for panel in dashboard(name)["panels"]:
            for target in panel["targets"]:
                names = re.findall(r"\b(?:autellix|process)_\w+", target["expr"])
                legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                assert legend <= set.union(*(series[each] for each in names)), target


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    for rule in rules():
        if "record" in rule:
            continue
        assert rule["alert"].startswith("Autellix")
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
