"""The simulated stream beside a flood: what is made of decisions, and the figures of a small run."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.priority import Priority
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("priorities")


def test_calls_of_the_stream_are_measured_while_the_flood_lasts(benchmark: Any) -> None:
    sources = ["flood", "stream"]
    decisions = [
        ("arrive", "0.0", 0.0),
        ("arrive", "1.0", 1.0),
        ("start", "0.0", 1.0),
        ("start", "1.0", 2.0),
        ("preempt", "1.0", 3.0),
        ("start", "1.0", 4.0),
        ("finish", "1.0", 6.0),
        ("finish", "0.0", 6.0),
        ("arrive", "1.1", 7.0),
        ("start", "1.1", 7.0),
        ("finish", "1.1", 9.0),
    ]

    beside = benchmark.measured(decisions, sources, 6.0)
    assert (beside.latencies_s, beside.waits_s) == ([5.0], [1.0])
    alone = benchmark.measured(decisions, sources, 0.0)
    assert (alone.latencies_s, alone.waits_s) == ([5.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize("kind", ["agents", "coding agents", "long prompts", "long answers"])
def test_a_flood_is_there_at_once_and_the_same_for_a_seed(benchmark: Any, kind: str) -> None:
    flood = benchmark.flood_of(kind, 5, 1)

    assert flood == benchmark.flood_of(kind, 5, 1) != benchmark.flood_of(kind, 5, 2)
    assert {(at_s, program.source) for at_s, program in flood} == {(0.0, "flood")}


def test_with_priorities_the_stream_hardly_waits(benchmark: Any) -> None:
    model = EngineModel(max_num_seqs=4, kv_blocks=4000)
    arguments = argparse.Namespace(batch=60, rate=0.2)
    waits_s = {}
    for name, priorities in (("none", {}), ("stated", benchmark.STATED)):
        settings = SimSettings(model=model, scheduler=SchedulerConfig(), priorities=priorities)
        waits_s[name] = benchmark.compare(settings, "long answers", arguments, 0)["max wait (s)"]

    assert benchmark.STATED == {"stream": Priority.INTERACTIVE, "flood": Priority.BATCH}
    assert waits_s["stated"] < waits_s["none"] / 2
