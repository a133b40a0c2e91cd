from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autellix_lab.bench.metrics import ProgramOutcome
from autellix_lab.bench.result_file import ReplayResult
from autellix_lab.bench.result_table import (
    differing_settings,
    figures,
    result_table,
)


def outcome(token_latency_s: float, **fields: Any) -> ProgramOutcome:
    known: dict[str, Any] = {
        "program": "p",
        "source": "s",
        "output_tokens": 10,
        "latency_s": 10 * token_latency_s,
        "token_latency_s": token_latency_s,
        "latency_steps": 20.0,
        "token_latency_steps": 2.0,
        "wait_s": 1.0,
        "service_s": 1.0,
        "preemptions": 2,
        "demotions": 0,
        "promotions": 0,
        "prompt_tokens": 100,
        "cached_tokens": 25,
    }
    return ProgramOutcome(**{**known, **fields})


def result(*outcomes: ProgramOutcome, **setting: Any) -> ReplayResult:
    return ReplayResult(
        setting={"seed": 0, "url": "here", **setting},
        programs=len(outcomes),
        calls=len(outcomes),
        lost_calls=0,
        calls_without_report=0,
        duration_s=5.0,
        errors=(),
        outcomes=outcomes,
    )


BASE = result(outcome(1.0), outcome(3.0))
BARE = result(
    outcome(
        0.5,
        latency_steps=None,
        token_latency_steps=None,
        wait_s=None,
        service_s=None,
        preemptions=None,
        demotions=None,
        promotions=None,
        cached_tokens=None,
    ),
    url="there",
)


def show(**results: ReplayResult) -> str:
    console = Console(record=True, width=200)
    with console.capture() as captured:
        console.print(result_table(results))
    return captured.get()


def row(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if title in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_figures_sum_up_the_programs() -> None:
    found = figures(BASE)
    assert found["fairness"] == pytest.approx(0.8)
    assert (found["cache_hits"], found["preemptions"], found["output_tokens"]) == (0.25, 4, 20)


def test_unreported_figures_are_unknown() -> None:
    found = figures(BARE)
    assert (found["cache_hits"], found["preemptions"]) == (None, None)
    assert found["fairness"] == 1.0
    assert figures(result())["fairness"] is None


def test_the_table_has_ratios_to_the_first_and_marks_unknown_values() -> None:
    text = show(base=BASE, bare=BARE)
    assert row(text, "program token latency (ms/token)")[1:] == ["mean", "2000", "500", "0.25"]
    assert row(text, "program latency (steps)")[1:] == ["mean", "20", "n/a", ""]
    assert row(text, "preemptions  ")[2:] == ["4", "n/a", ""]
    assert row(text, "duration (s)")[2:] == ["5", "5", "1.00"]


def test_one_result_has_no_ratios() -> None:
    assert row(show(base=BASE), "program latency (s)")[1:] == ["mean", "20"]


def test_settings_that_differ_are_named_but_not_the_place() -> None:
    other = replace(BARE, setting={"seed": 1, "url": "there", "gaps": "zero"})
    assert differing_settings({"a": BASE, "b": BARE}) == []
    assert differing_settings({"a": BASE, "b": other}) == ["seed: a 0, b 1", "gaps: a None, b zero"]
