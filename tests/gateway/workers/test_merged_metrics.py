"""The metrics of several workers as one page."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autellix_backend.gateway.workers.merged_metrics import MetricsOfWorkers
from autellix_backend.observe.metric_families import MetricFamily
from autellix_backend.observe.metrics import GatewayMetrics


def worker(calls: int, *, is_store_up: bool = True, queued: int = 0) -> list[MetricFamily]:
    metrics = GatewayMetrics()
    metrics.follow_store(lambda: None if is_store_up else "gone")
    metrics.retries.labels("e").inc(calls)
    for number in range(calls):
        metrics.queues.queue_s.labels("e").observe(0.05 if number else 5.0)
    metrics.queues.set_queue(
        "e", queued_calls=queued, unanswered_calls=queued, unanswered_bytes=0, is_breaker_open=False
    )
    metrics.set_stored(programs=7, sessions=3, active_calls=queued)
    return metrics.families()


def values(page: bytes) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_counters_and_histograms_are_summed() -> None:
    found = values(MetricsOfWorkers().page({1: worker(2), 2: worker(3)}))

    assert found["autellix_upstream_retries_total{engine=e}"] == 5
    assert found["autellix_queue_seconds_count{engine=e}"] == 5
    assert found["autellix_queue_seconds_sum{engine=e}"] == pytest.approx(10.15)
    assert found["autellix_queue_seconds_bucket{engine=e,le=0.1}"] == 3
    assert found["autellix_queue_seconds_bucket{engine=e,le=+Inf}"] == 5


def test_a_gauge_is_merged_by_what_it_says() -> None:
    found = values(
        MetricsOfWorkers().page({1: worker(0, queued=2), 2: worker(0, queued=3, is_store_up=False)})
    )

    # Each has calls of its own; one that cannot reach the table is enough; all know the same programs.
    assert found["autellix_queued_calls{engine=e}"] == 5
    assert found["autellix_store_up{}"] == 0
    assert found["autellix_stored{kind=programs}"] == 7
    assert found["autellix_worker_up{worker=1}"] == found["autellix_worker_up{worker=2}"] == 1


def test_what_belongs_to_a_process_has_its_workers_number() -> None:
    found = values(MetricsOfWorkers().page({1: worker(0), 2: worker(0)}))

    memory = [name for name in found if name.startswith("process_resident_memory_bytes")]
    assert memory == ["process_resident_memory_bytes{worker=1}", "process_resident_memory_bytes{worker=2}"]


def test_a_worker_that_does_not_answer_counts_as_it_did_last_and_is_marked() -> None:
    metrics = MetricsOfWorkers()
    metrics.page({1: worker(2), 2: worker(3, queued=4)})
    found = values(metrics.page({1: worker(4), 2: None}))

    assert found["autellix_upstream_retries_total{engine=e}"] == 7
    assert found["autellix_worker_up{worker=1}"] == 1
    assert found["autellix_worker_up{worker=2}"] == 0
    # What it holds at the moment is not known.
    assert found["autellix_queued_calls{engine=e}"] == 0


def test_what_an_ended_worker_had_counted_stays_in_the_sums() -> None:
    metrics = MetricsOfWorkers()
    metrics.page({1: worker(2), 2: worker(3)})
    metrics.on_ended(2)
    assert values(metrics.page({1: worker(2), 2: None}))["autellix_upstream_retries_total{engine=e}"] == 5

    # Its successor begins at nothing; that one ends too.
    assert (
        values(metrics.page({1: worker(2), 2: worker(1)}))["autellix_upstream_retries_total{engine=e}"] == 6
    )
    metrics.on_ended(2)
    found = values(metrics.page({1: worker(2), 2: worker(0)}))
    assert found["autellix_upstream_retries_total{engine=e}"] == 6
    assert found["autellix_queue_seconds_count{engine=e}"] == 6
    assert not [name for name in found if name.startswith("process_") and "worker=0" in name]


def test_one_worker_that_never_answered_adds_nothing() -> None:
    metrics = MetricsOfWorkers()
    metrics.on_ended(2)
    found = values(metrics.page({1: worker(1), 2: None}))
    assert found["autellix_upstream_retries_total{engine=e}"] == 1
