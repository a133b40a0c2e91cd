"""A short soak of the gateway, and tests of its verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    return soak


def stats(soak: Any, **changes: int) -> Any:
    fields = {"begun": 10, "settled": 10, "settled_twice": 0, "programs": 0, "sessions": 0, "active_calls": 0}
    return soak.Stats(**fields | {"tasks": 4, "sockets": 5, "series": 40, "memory_bytes": 1} | changes)


def ledger(soak: Any, **outcomes: int) -> Any:
    made = soak.Ledger()
    made.outcomes.update(outcomes or {"200": 9, "left": 1})
    return made


def test_the_gateway_keeps_nothing_of_programs_that_fail_leave_and_end_in_every_way() -> None:
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--programs", "256", "--calls", "1200"]
    run = subprocess.run(
        [*command, "--think", "0.2", "--idle", "3", "--patience", "4", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads(run.stdout)
    assert report["complaints"] == []
    assert run.returncode == 0
    assert report["programs_at_once"] > 200
    # A client that leaves before its turn, as many do on a busy machine, begins no call.
    assert report["after"]["begun"] == report["after"]["settled"] > 1000
    # Every kind of fault was there.
    assert {"200", "500", "502", "broken", "left"} <= report["outcomes"].keys()
    assert len(report["endings"]) == 5


def test_a_clean_soak_has_no_complaint(soak: Any) -> None:
    clean = stats(soak)
    assert soak.complaints(clean, clean, clean, ledger(soak), 10.0) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"settled": 9}, "10 calls began and 9 were settled"),
        ({"settled_twice": 1}, "1 calls were settled twice"),
        ({"programs": 1}, "1 programs are left"),
        ({"sessions": 2}, "2 sessions are left"),
        ({"active_calls": 1}, "1 active_calls are left"),
        ({"tasks": 5}, "5 tasks are held"),
        ({"sockets": 6}, "6 sockets are held"),
        ({"series": 49}, "49 series are held"),
        ({"begun": 12, "settled": 12}, "and 12 began"),
    ],
)
def test_anything_left_is_reported(soak: Any, change: dict[str, int], complaint: str) -> None:
    found = soak.complaints(stats(soak), stats(soak), stats(soak, **change), ledger(soak), 10.0)
    assert len(found) == 1
    assert complaint in found[0]


def test_growing_memory_is_reported(soak: Any) -> None:
    slope = soak.growth([(1000, 10_000_000), (2000, 14_000_000), (3000, 18_000_000)])
    assert slope == pytest.approx(4000.0)
    clean = stats(soak)
    assert "grew by 4000 bytes" in soak.complaints(clean, clean, clean, ledger(soak), slope)[0]
