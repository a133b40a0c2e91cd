"""What is counted of settled calls."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from tests.observe.facts import facts

from autellix_backend.observe.call_metrics import CallMetrics


def counted(**fields: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    CallMetrics(registry).take(facts(**fields))
    return registry


def test_a_call_is_counted_by_its_level_and_engine() -> None:
    registry = counted()
    engine = {"engine": "replica-0"}

    assert registry.get_sample_value("autellix_engine_wait_seconds_sum", {"level": "2"}) == 0.25
    assert registry.get_sample_value("autellix_time_to_first_token_seconds_sum", engine) == 0.5
    for kind, tokens in (("prompt", 10), ("cached", 4), ("output", 20)):
        assert registry.get_sample_value("autellix_tokens_total", {**engine, "kind": kind}) == tokens
    for kind, moves in (("demotion", 2), ("promotion", 3)):
        assert registry.get_sample_value("autellix_level_changes_total", {**engine, "kind": kind}) == moves


def test_what_is_not_known_is_not_counted() -> None:
    registry = counted(level=None, first_token_s=None, prompt_tokens=None, promotions=None)

    assert registry.get_sample_value("autellix_engine_wait_seconds_count", {"level": "2"}) is None
    assert (
        registry.get_sample_value("autellix_time_to_first_token_seconds_count", {"engine": "replica-0"})
        is None
    )
    assert registry.get_sample_value("autellix_tokens_total", {"engine": "replica-0", "kind": "prompt"}) == 0


def test_a_broken_stream_has_no_time_to_its_first_token() -> None:
    registry = counted(outcome="aborted")

    assert (
        registry.get_sample_value("autellix_time_to_first_token_seconds_count", {"engine": "replica-0"})
        is None
    )
