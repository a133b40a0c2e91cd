"""Seeded sessions: the same for the same seed, short enough for the engine, with times of their calls."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "others"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("sessions")


def test_a_seed_makes_the_same_sessions_of_which_every_fourth_has_sub_agents(sessions: Any) -> None:
    made = sessions.sessions(8, 1)
    assert made == sessions.sessions(8, 1) != sessions.sessions(8, 2)
    assert [program.is_parallel for program in made] == [False, False, False, True] * 2
    longest = max(call.context_tokens for program in made for call in program.calls)
    assert longest < (sessions.KV_BLOCKS - 1) * 32


def test_a_call_starts_after_the_last_of_its_parents_and_its_gap(sessions: Any) -> None:
    for program in sessions.sessions(4, 1):
        for call in program.calls:
            ends_s = [
                program.calls[parent].start_s + program.calls[parent].latency_s for parent in call.parents
            ]
            assert call.start_s == max(ends_s, default=0.0) + (call.gap_before_s or 0.0)
            assert call.latency_s == sessions.TOKEN_S * call.decode_tokens


def test_each_session_is_a_file(sessions: Any, tmp_path: Path) -> None:
    sessions.write_sessions(tmp_path, 4, 1, sessions.WEKA)
    written = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.iterdir())]
    assert [trace["id"] for trace in written] == [program.program_id for program in sessions.sessions(4, 1)]
    assert any(request["type"] == "subagent" for request in written[3]["requests"])
