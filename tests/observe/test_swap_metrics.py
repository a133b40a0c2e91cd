"""The counters of swapped KV blocks, from totals that engines tell."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from autellix_backend.core.snapshot import KvSwapTotals
from autellix_backend.observe.swap_metrics import SwapMetrics

FIRST = KvSwapTotals(4096, 2, 0.25, 2048, 1, 0.125, 3, 1)
SECOND = KvSwapTotals(8192, 5, 0.75, 2048, 1, 0.125, 3, 1)
ANEW = KvSwapTotals(1024, 1, 0.5, 0, 0, 0.0, 0, 0)


def values(registry: CollectorRegistry, name: str) -> tuple[float | None, ...]:
    """A counter of engine a, by direction."""
    return tuple(
        registry.get_sample_value(f"autellix_kv_swap_{name}_total", {"engine": "a", "direction": direction})
        for direction in ("store", "load")
    )


def test_totals_become_counters() -> None:
    """Each snapshot tells all since the start; what was counted before is not counted again."""
    registry = CollectorRegistry()
    metrics = SwapMetrics(registry)
    for totals in (FIRST, FIRST, SECOND):
        metrics.advance("a", totals)

    assert (values(registry, "bytes"), values(registry, "transfers")) == ((8192, 2048), (5, 1))
    assert values(registry, "seconds") == (0.75, 0.125)
    for name, expected in (("hit_chunks", 3), ("refused_chunks", 1)):
        assert registry.get_sample_value(f"autellix_kv_swap_{name}_total", {"engine": "a"}) == expected


def test_an_engine_that_starts_again_adds_to_its_counters() -> None:
    """Its totals fall; the counters do not."""
    registry = CollectorRegistry()
    metrics = SwapMetrics(registry)
    for totals in (SECOND, ANEW):
        metrics.advance("a", totals)

    assert values(registry, "bytes") == (9216, 2048)


def test_an_engine_that_left_is_counted_from_zero() -> None:
    """One that comes under its name later is another."""
    registry = CollectorRegistry()
    metrics = SwapMetrics(registry)
    metrics.advance("a", FIRST)
    for counter in metrics.of_engines:
        counter.remove_by_labels({"engine": "a"})
    metrics.forget("a")
    metrics.advance("a", SECOND)

    assert values(registry, "bytes") == (8192, 2048)
