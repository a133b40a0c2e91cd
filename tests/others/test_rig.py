"""What the load generators of others share: the engine's own counts, and each run made once."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
from collections import Counter
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


GATEWAY = """autellix_calls_total{engine="e",model="m",outcome="ok",source="x-session-id"} 3.0
autellix_calls_total{engine="f",model="m",outcome="ok",source="x-session-id"} 4.0
autellix_calls_total{engine="e",model="m",outcome="aborted",source="content-chain"} 1.0
autellix_calls_created{engine="e",model="m",outcome="ok",source="x-session-id"} 1.7e+09
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


def test_a_gateways_calls_are_summed_by_outcome_and_source(rig: Any) -> None:
    assert rig.read_calls(GATEWAY) == {"ok, x-session-id": 7, "aborted, content-chain": 1}


def test_a_tool_that_fails_is_an_error_with_its_output_kept(rig: Any, tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(os.environ['REASON'])"
    with pytest.raises(subprocess.CalledProcessError):
        rig.run_tool([sys.executable, "-c", code], tmp_path, {"REASON": "so"})
    assert (tmp_path / "tool.log").read_text(encoding="utf-8") == "so\n"


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

    def seen_by(_system: Any) -> Any:
        return rig.Seen({f"program-{seed}": 4 for _, seed in made}, Counter({"ok, x": 4 * len(made)}))

    monkeypatch.setattr(rig, "seen_by", seen_by)

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
    gateway = json.loads((tmp_path / "autellix-2" / "gateway.json").read_text(encoding="utf-8"))
    assert gateway == {"programs": 1, "programs_by_calls": {"4": 1}, "calls": {"ok, x": 4}}
    assert not (tmp_path / "vllm-2" / "gateway.json").exists()


def test_a_table_has_the_worst_ratio_first_and_only_complete_seeds(rig: Any, tmp_path: Path) -> None:
    computed = {"vllm-1": 1000, "autellix-1": 2000, "vllm-3": 10, "autellix-3": 10, "vllm-2": 1}
    for name, tokens in computed.items():
        (tmp_path / name).mkdir()
        rig.write_json(tmp_path / name / "engine.json", {"prompt_tokens": tokens + 5, "cached_tokens": 5})
    made = rig.table(tmp_path, [1, 2, 3], lambda folder: {"s": 0.5 if folder.name[0] == "a" else 2.0})
    assert made == [
        "| vllm → autellix, ratio | seed 1 | seed 3 |",
        "| --- | --- | --- |",
        "| prompt tokens computed | 1,000 → 2,000, 2.00 | 10 → 10, 1.00 |",
        "| s | 2 → 0.5, 0.25 | 2 → 0.5, 0.25 |",
    ]
    assert len(rig.table(tmp_path, [2], lambda _folder: {})) == 2
