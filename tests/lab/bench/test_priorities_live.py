"""What the live comparison of priorities makes of answers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("priorities_live")


def test_a_phase_is_one_line(live: Any) -> None:
    stream, flood = live.Side(), live.Side()
    stream.take(1.5, {"autellix": {"wait_s": 0.5}, "usage": {"completion_tokens": 24}})
    flood.take(9.0, {"autellix": {"wait_s": 3.0}, "usage": {"completion_tokens": 64}})

    assert list(live.table({"both": (stream, flood), "flood alone": (live.Side(), flood)}, 2.0))[2:] == [
        "| both | 1 | 1.50 | 0.50 | 32 |",
        "| flood alone | 0 | - | - | 32 |",
    ]


def test_a_failed_call_ends_the_comparison(live: Any) -> None:
    with pytest.raises(RuntimeError, match="a call failed"):
        live.Side().take(1.0, {"error": {"message": "no"}})
