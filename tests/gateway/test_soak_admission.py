"""The verdict of the soak of admission: what it complains of, and what it forgives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a soak that has seen a sound run of a minute, without starting anything."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak_admission
    from soak_admission import CallNote

    options = argparse.Namespace(seed=0, kv_blocks=161, bound=240.0, host_gib=0.03, store="memory://")
    made = soak_admission.Soak(options, tmp_path)
    for at in range(100):
        made._notes.calls.append(CallNote("chat", float(at), at + 2.0, "replica-0", "answered"))
    for at in range(200):
        made._see(row(step=10 * at, inactive_programs=at % 2, boost_strength_s=1.0), at / 2)
    return made


def row(**changes: Any) -> dict[str, Any]:
    return {
        "name": "replica-0",
        "state": "up",
        "failure": None,
        "open_calls": 3,
        "queued_calls": 0,
        "running": 2,
        "waiting": 1,
        "active_programs": 4,
        "working_set_tokens": 900,
        "working_set_capacity_tokens": 1000,
        "boost_strength_s": 1.0,
        **changes,
    }


def complaints(soak: Any, left: dict[str, Any] | None = None) -> list[str]:
    found: list[str] = soak._report(60.0, left or {})["complaints"]
    return found


def harm(soak: Any, at_s: float, back_s: float | None) -> None:
    from soak_admission import Harm

    soak._harms.append(Harm("replica-0", "kill core", at_s, back_s))


def note(soak: Any, began_s: float, ended_s: float, outcome: str, detail: str = "") -> None:
    from soak_admission import CallNote

    soak._notes.calls.append(CallNote("huge", began_s, ended_s, "replica-0", outcome, detail))


def test_a_sound_run_has_no_complaint(soak: Any) -> None:
    assert complaints(soak) == []
    assert soak._report(60.0, {})["samples with inactive programs"] == 0.5


def test_a_wrong_answer_a_late_one_and_anything_left_are_complaints(soak: Any) -> None:
    note(soak, 0.0, 1.0, "wrong", "418")
    note(soak, 0.0, 241.0, "answered")
    found = complaints(soak, {"replica-0": {"waiting": 1}})

    assert len(found) == 3
    assert found[0] == "huge: 418"
    assert "took 241 s" in found[1]
    assert "'waiting': 1" in found[2]


def test_a_call_is_lost_only_with_an_engine(soak: Any) -> None:
    note(soak, 10.0, 12.0, "lost", "engine_unavailable")
    assert "lost without a dead engine" in complaints(soak)[0]

    harm(soak, 11.0, 40.0)

    assert complaints(soak) == []


def test_an_engine_with_calls_that_makes_no_step_stands_still(soak: Any) -> None:
    for at in range(60):
        soak._see(row(step=5000, inactive_programs=1), 200.0 + at)

    (found,) = complaints(soak)
    assert "made no step from 5000" in found


@pytest.mark.parametrize(
    "changes", [{"open_calls": 0}, {"open_calls": 2, "queued_calls": 2}, {"state": "down"}]
)
def test_an_engine_without_calls_may_stand(soak: Any, changes: dict[str, Any]) -> None:
    for at in range(60):
        soak._see(row(step=5000, inactive_programs=0, **changes), 200.0 + at)

    assert complaints(soak) == []


def test_an_engine_may_keep_no_call_waiting_while_none_runs(soak: Any) -> None:
    """Not even with steps: some may be empty."""
    for at in range(4):
        soak._see(row(step=5000 + at, running=0, inactive_programs=1), 200.0 + at)
    assert complaints(soak) == []
    soak._see(row(step=5005, running=0, inactive_programs=1), 204.0)

    assert complaints(soak) == ["calls waited for 4.0 s while none ran"]


def test_growth_of_an_engine_beyond_its_host_memory_is_a_complaint(soak: Any) -> None:
    mib = 1 << 20
    soak._watch.engine_bytes[1] = (600 * mib, 880 * mib)
    assert complaints(soak) == []
    soak._watch.engine_bytes[2] = (600 * mib, 900 * mib)

    assert complaints(soak) == ["an engine grew by 300 MiB"]


def test_a_refused_reset_is_a_complaint(soak: Any) -> None:
    soak._resets.update({200: 3, 503: 1})
    assert complaints(soak) == ["resets of prefix caches: {200: 3, 503: 1}"]


def test_a_harmed_engine_may_stand(soak: Any) -> None:
    harm(soak, 205.0, None)
    for at in range(60):
        soak._see(row(step=5000, inactive_programs=1), 200.0 + at)

    assert complaints(soak) == []


def test_a_run_in_which_admission_never_acted_shows_nothing(soak: Any) -> None:
    soak._watch.samples["inactive"] = 0
    assert complaints(soak) == ["admission never acted: no program was ever inactive"]


def test_a_plugin_that_gave_up_is_found_in_the_logs(soak: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    line = "ERROR Autellix scheduling failed; this engine goes on in order of arrival"
    (tmp_path / "logs" / "replica-0.log").write_text(
        f"INFO ready\n{line}\nTraceback (most recent call last):\n"
    )
    harm(soak, 11.0, 40.0)
    soak._read_logs()

    # The traceback may be that of the engine core that was killed.
    assert complaints(soak) == [f"replica-0.log: {line}"]


def test_outcomes_are_read_from_answers(soak: Any) -> None:
    from soak_admission import _outcome

    lost = b'data: {"error": {"message": "gone", "code": "engine_unavailable"}}\n\n'
    assert _outcome(200, b'{"choices": []}', is_stream=False)[0] == "answered"
    assert _outcome(200, b"data: {}\n\ndata: [DONE]\n\n", is_stream=True)[0] == "answered"
    assert _outcome(200, b"data: {}\n\n" + lost, is_stream=True) == ("lost", "engine_unavailable")
    assert _outcome(503, lost.removeprefix(b"data: "), is_stream=True) == ("lost", "engine_unavailable")
    assert _outcome(503, b'{"error": {"code": "overloaded"}}', is_stream=False)[0] == "wrong"
    assert _outcome(200, b"data: {}\n\n", is_stream=True)[0] == "wrong"
