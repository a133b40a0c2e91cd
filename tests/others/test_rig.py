"""What the load generators of others share: the engine's own counts, and each run made once."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"
METRICS = """# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 12.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 30.0
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 2.0
"""


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("rig")


def test_counters_are_summed_over_an_engines_ranks(rig: Any) -> None:
    assert rig.read_counters(METRICS) == {
        "prompt_tokens": 42,
        "answer_tokens": 5,
        "cached_tokens": 2,
        "preemptions": 0,
    }


def test_each_run_is_made_once_in_alternating_order(
    rig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = dict.fromkeys(rig.COUNTERS, 0)

    @contextlib.contextmanager
    def systems(_out: Path, _kv_blocks: int, _slots: int) -> Iterator[list[Any]]:
        yield [rig.System(name, "http://a", "http://a", tmp_path) for name in (rig.PLAIN, rig.OURS)]

    monkeypatch.setattr(rig, "systems", systems)
    monkeypatch.setattr(rig, "counters_of", lambda _system: dict(counted))
    made: list[tuple[str, int]] = []

    def tool(system: Any, seed: int, _folder: Path) -> None:
        made.append((system.name, seed))
        counted["answer_tokens"] += 7

    args = argparse.Namespace(out=tmp_path, seeds=[1, 2], kv_blocks=4, slots=2)
    rig.compare(args, tool)
    rig.compare(args, tool)
    assert made == [("vllm", 1), ("autellix", 1), ("autellix", 2), ("vllm", 2)]
    report = json.loads((tmp_path / "vllm-2" / "engine.json").read_text(encoding="utf-8"))
    assert report.pop("seconds") >= 0
    assert report == {"prompt_tokens": 0, "answer_tokens": 7, "cached_tokens": 0, "preemptions": 0}
