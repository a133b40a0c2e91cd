"""The core of vLLM's features under forced preemption; `scripts/vllm-features` plays them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.vllm_plugin.vllm_features import CASES, Case, Verdict, difference, play

EQUAL = {"outputs": {"a": [[[1, 2], "x", "stop", [{"1": -0.5}]]]}, "preemptions": 30, "faults": []}


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_core_answers_as_without_us(tmp_path: Path) -> None:
    """Each feature gives equal answers, and was preempted as often as it says."""
    pytest.importorskip("vllm")
    core = [case.name for case in CASES if case.is_core]
    verdicts = {verdict.case: verdict for verdict in play(core, tmp_path / "engines.log")}

    assert verdicts.keys() == set(core)
    assert [verdict for verdict in verdicts.values() if verdict.verdict != "equal"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"outputs": {"a": [[[1, 3], "x", "stop", [{"1": -0.5}]]]}}, "1 of 1 answers differ, a first"),
        ({"outputs": {"a": [[[1, 2], "x", "stop", [{"1": -0.6}]]]}}, "1 of 1 answers differ, a first"),
        ({"outputs": {}}, "1 of 1 answers differ, a first"),
        ({"preemptions": 3}, "only 3 preemptions"),
        ({"faults": ["requests left"]}, "requests left"),
    ],
)
def test_what_counts_as_a_difference(changes: dict[str, object], words: str) -> None:
    assert difference(EQUAL, EQUAL | changes, Case("plain")) == words


def test_a_worker_that_dies_fails_its_case_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends without a verdict is one row, and the next case gets another process."""
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no interpreter starts with it
    verdicts = list(play(["plain", "aborts"]))

    assert [(verdict.case, verdict.verdict) for verdict in verdicts] == [
        ("plain", "fails"),
        ("aborts", "fails"),
    ]
    assert isinstance(verdicts[0], Verdict)
