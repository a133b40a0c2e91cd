"""The gateway's metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tests.observe.settled_calls import settled_call

from autellix_backend.core.priority import Priority
from autellix_backend.observe.metric_factory import MetricFactory
from autellix_backend.observe.metrics import (
    MAX_MODELS,
    CallMetrics,
    EngineGauges,
    GatewayMetrics,
    OffloadMetrics,
)
from autellix_backend.observe.settled_call import Outcome, Usage
from autellix_backend.reports.snapshot import (
    AdmissionSnapshot,
    BoostSnapshot,
    EngineSnapshot,
    KvOffloadTotals,
)


def counted(**fields: Any) -> CollectorRegistry:
    make = MetricFactory()
    CallMetrics(make).take(settled_call(**fields))
    return make.registry


def test_a_call_is_counted_by_its_level_and_engine() -> None:
    registry = counted()
    engine = {"engine": "replica-0", "model": "m"}

    assert registry.get_sample_value("autellix_engine_wait_seconds_sum", {"level": "2"}) == 0.25
    assert registry.get_sample_value("autellix_time_to_first_token_seconds_sum", engine) == 0.5
    for kind, tokens in (("prompt", 10), ("cached", 4), ("output", 20)):
        assert registry.get_sample_value("autellix_tokens_total", {**engine, "kind": kind}) == tokens
    for kind, moves in (("demotion", 2), ("promotion", 3)):
        labels = {"engine": "replica-0", "kind": kind}
        assert registry.get_sample_value("autellix_level_changes_total", labels) == moves


def test_waiting_is_counted_by_its_reason() -> None:
    registry = counted(wait_s=0.75, inactive_s=0.5)

    for reason, seconds in (("inactive", 0.5), ("slot", 0.25)):
        labels = {"engine": "replica-0", "reason": reason}
        assert registry.get_sample_value("autellix_wait_seconds_total", labels) == seconds


def test_waiting_is_counted_by_priority() -> None:
    for priority in Priority:
        labels = {"priority": priority.value}
        registry = counted(priority=priority)
        assert registry.get_sample_value("autellix_priority_wait_seconds_sum", labels) == 0.25


def output_token_s(**fields: Any) -> float | None:
    name = "autellix_time_per_output_token_seconds_sum"
    return counted(**fields).get_sample_value(name, {"engine": "replica-0", "model": "m"})


def test_time_per_output_token_is_that_after_the_first() -> None:
    assert output_token_s(first_token_s=0.5, output_tokens=21) == pytest.approx(0.1)
    assert output_token_s(first_token_s=None) is None
    assert output_token_s(output_tokens=1) is None
    assert output_token_s(outcome=Outcome.ABORTED) is None


def test_time_per_output_token_of_parallel_choices_is_that_of_each() -> None:
    stated = Usage(prompt_tokens=10, output_tokens=42)
    assert output_token_s(record_count=2, stated_usage=stated) == pytest.approx(0.1)


def test_models_that_never_answered_have_no_series_of_their_own() -> None:
    make = MetricFactory()
    metrics = CallMetrics(make)
    for at in range(MAX_MODELS + 8):
        metrics.take(settled_call(model=f"missing-{at}", outcome=Outcome.REJECTED))
        metrics.take(settled_call(model=f"adapter-{at}"))
    metrics.take(settled_call(model=None))

    samples = [sample for metric in make.registry.collect() for sample in metric.samples]
    models = {sample.labels["model"] for sample in samples if "model" in sample.labels}
    assert models == {f"adapter-{at}" for at in range(MAX_MODELS)} | {"other"}


def test_programs_are_counted_by_the_names_that_the_operator_chose() -> None:
    metrics = GatewayMetrics(["react"])
    metrics.programs.take("react", {"queue": 2.0, "engine": 4.0}, output_tokens=60)
    metrics.programs.take("<stranger>", {"queue": 1.0, "engine": 0.0}, output_tokens=0)
    metrics.programs.take(None, {"queue": 1.0, "engine": 0.0}, output_tokens=0)

    value = metrics.registry.get_sample_value
    assert value("autellix_program_duration_seconds_sum", {"name": "react"}) == 6.0
    assert value("autellix_program_token_seconds_sum", {"name": "react"}) == pytest.approx(0.1)
    assert value("autellix_program_part_seconds_total", {"name": "react", "part": "queue"}) == 2.0
    assert value("autellix_program_duration_seconds_count", {"name": "other"}) == 2
    assert value("autellix_program_token_seconds_count", {"name": "other"}) is None


def test_the_process_and_the_release_are_told() -> None:
    text = GatewayMetrics().render().decode()

    assert "\nprocess_resident_memory_bytes " in text
    assert f'autellix_build_info{{version="{version("autellix")}"}} 1.0' in text


def test_unknown_values_are_not_counted() -> None:
    registry = counted(level=None, model=None, outcome=Outcome.ABORTED, prompt_tokens=None, promotions=None)
    engine = {"engine": "replica-0", "model": "other"}

    assert registry.get_sample_value("autellix_engine_wait_seconds_count", {"level": "2"}) is None
    assert registry.get_sample_value("autellix_time_to_first_token_seconds_count", engine) is None
    assert registry.get_sample_value("autellix_tokens_total", {**engine, "kind": "prompt"}) == 0


SNAPSHOT = EngineSnapshot(
    step=9,
    mean_step_s=0.02,
    running=3,
    waiting=5,
    slots=4,
    kv_used_blocks=6,
    kv_total_blocks=8,
    kv_block_tokens=16,
    is_block_short=False,
    level_calls=(8,),
    calls=(),
)


def test_snapshots_and_working_sets_become_gauges_until_they_are_cleared() -> None:
    make = MetricFactory()
    gauges = EngineGauges(make)
    boosted = msgspec.structs.replace(SNAPSHOT, boost=BoostSnapshot(3.0, 0.8, 4.0))
    gauges.set_snapshot("a", boosted, 0.4)
    gauges.set_working_set("a", AdmissionSnapshot(11, 4, 48_000, 52_000))

    def value(name: str, **labels: str) -> float | None:
        return make.registry.get_sample_value(f"autellix_{name}", {"engine": "a", **labels})

    assert (value("engine_calls", state="running"), value("engine_calls", state="waiting")) == (3, 5)
    assert (value("engine_kv_blocks", kind="used"), value("engine_kv_blocks", kind="total")) == (6, 8)
    names = (
        *("engine_slots", "engine_step_seconds", "engine_snapshot_age_seconds", "boost_strength_seconds"),
        *("active_programs", "inactive_programs", "working_set_tokens", "working_set_capacity_tokens"),
    )
    assert [value(name) for name in names] == [4, 0.02, 0.4, 3.0, 11, 4, 48_000, 52_000]
    gauges.clear()
    assert [value(name) for name in names] == [None] * len(names)


FIRST = KvOffloadTotals(4096, 2, 0.25, 2048, 1, 0.125, 3, 1)
SECOND = KvOffloadTotals(8192, 5, 0.75, 2048, 1, 0.125, 3, 1)
ANEW = KvOffloadTotals(1024, 1, 0.5, 0, 0, 0.0, 0, 0)


def values(registry: CollectorRegistry, name: str) -> tuple[float | None, ...]:
    """A counter of engine a, by direction."""
    return tuple(
        registry.get_sample_value(
            f"autellix_kv_offload_{name}_total", {"engine": "a", "direction": direction}
        )
        for direction in ("store", "load")
    )


def test_totals_become_counters() -> None:
    """Each snapshot holds all since the start; only the difference is counted."""
    make = MetricFactory()
    metrics = OffloadMetrics(make)
    for totals in (FIRST, FIRST, SECOND):
        metrics.advance("a", totals)

    assert (values(make.registry, "bytes"), values(make.registry, "transfers")) == ((8192, 2048), (5, 1))
    assert values(make.registry, "seconds") == (0.75, 0.125)
    for name, expected in (("hit_chunks", 3), ("refused_chunks", 1)):
        assert (
            make.registry.get_sample_value(f"autellix_kv_offload_{name}_total", {"engine": "a"}) == expected
        )


def test_a_restarted_engine_adds_to_its_counters() -> None:
    """Its totals fall; the counters do not."""
    make = MetricFactory()
    metrics = OffloadMetrics(make)
    for totals in (SECOND, ANEW):
        metrics.advance("a", totals)

    assert values(make.registry, "bytes") == (9216, 2048)


def test_a_removed_engine_is_counted_from_zero() -> None:
    """One that comes under its name later is another."""
    make = MetricFactory()
    metrics = OffloadMetrics(make)
    metrics.advance("a", FIRST)
    make.forget_engine("a")
    metrics.forget("a")
    metrics.advance("a", SECOND)

    assert values(make.registry, "bytes") == (8192, 2048)


def test_each_gateway_has_its_own_registry() -> None:
    first, second = GatewayMetrics(), GatewayMetrics()
    first.reaped.labels("session").inc(2)
    first.set_stored(programs=3, sessions=2, active_calls=1)
    assert b'autellix_reaped_total{kind="session"} 2.0' in first.render()
    assert b'autellix_stored{kind="programs"} 3.0' in first.render()
    assert b"autellix_reaped_total{" not in second.render()


def test_an_engine_that_comes_back_is_counted_from_zero() -> None:
    metrics = GatewayMetrics()
    for _ in range(2):
        metrics.calls.take(settled_call(engine="a", service_s=2.0))
        service_s = metrics.registry.get_sample_value("autellix_service_seconds_total", {"engine": "a"})
        assert service_s == 2.0
        metrics.forget_engine("a")
