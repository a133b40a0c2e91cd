"""Two runs of the same programs: what is faster, what is slower, and what is noise."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.lab.bench.test_result_table import outcome

from autellix_lab.bench.metrics import ProgramOutcome
from autellix_lab.bench.verdict import FASTER, NOISE, SLOWER, judge, paired_ratio


def run(factor: float, *, seed: int, step_s: float = 0.01, noise: float = 0.1, count: int = 60) -> list[Any]:
    """Return programs of sizes that all runs share, slower by a factor, with noise of their own."""
    sizes, own = random.Random(0), random.Random(seed)
    found = []
    for number in range(count):
        steps = sizes.uniform(100, 1000) * factor * own.uniform(1 - noise, 1 + noise)
        found.append(
            outcome(
                steps * step_s / 10,
                program=f"p{number}",
                latency_s=steps * step_s,
                latency_steps=steps,
                token_latency_steps=steps / 10,
            )
        )
    return found


def test_an_interval_holds_the_ratio_of_the_means() -> None:
    found = paired_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert str(found) == "2.00 (2.00 to 2.00)"
    assert paired_ratio([], []) is None
    assert paired_ratio([0.0], [1.0]) is None


def test_the_interval_includes_the_true_ratio_about_as_often_as_it_says() -> None:
    draw = random.Random(1)
    hits = 0
    for _ in range(400):
        base = [draw.uniform(1, 10) for _ in range(40)]
        other = [0.8 * value * draw.lognormvariate(0, 0.3) for value in base]
        found = paired_ratio(base, other)
        assert found is not None
        # The mean of a log-normal variable is e^(sigma² / 2).
        hits += found.low <= 0.8 * 1.046 <= found.high
    assert 0.91 <= hits / 400 <= 0.98


@pytest.mark.parametrize(("factor", "finding"), [(0.7, FASTER), (1.4, SLOWER), (1.0, NOISE)])
def test_the_verdict_follows_the_interval(factor: float, finding: str) -> None:
    verdict = judge("fcfs", run(1.0, seed=1), "boost", run(factor, seed=2))
    assert verdict.finding == finding
    assert verdict.programs == 60
    expected = (
        "noise: program latency" if finding == NOISE else f"boost is {finding} than fcfs: program latency"
    )
    assert verdict.text.startswith(expected)
    assert str(verdict.ratios["latency_s"]) in verdict.text
    assert verdict.step_time is not None
    assert verdict.step_time.finding == NOISE


def test_a_slower_machine_is_no_slower_policy() -> None:
    verdict = judge("fcfs", run(1.0, seed=1), "boost", run(1.0, seed=2, step_s=0.017))
    assert verdict.finding is None
    assert "an engine step took 1.70 times as long as with fcfs" in verdict.text
    assert "counted in steps it is" in verdict.text
    assert "noise. Repeat both runs in turn" in verdict.text
    assert verdict.ratios["latency_s"].finding == SLOWER


def test_a_policy_that_is_slower_in_steps_and_seconds_is_slower() -> None:
    verdict = judge("fcfs", run(1.0, seed=1), "boost", run(1.5, seed=2, step_s=0.017))
    assert verdict.finding == SLOWER
    steps = verdict.ratios["latency_steps"]
    assert verdict.text.startswith(f"boost is slower than fcfs: {steps}, counted in steps; program latency")
    assert verdict.text.endswith("; an engine step took 1.70 times as long as with fcfs")


def test_a_cold_first_run_makes_no_verdict_without_steps() -> None:
    cold = [replace(each, latency_steps=None) for each in run(1.0, seed=1, step_s=0.03)]
    warm = [replace(each, latency_steps=None) for each in run(1.0, seed=2)]
    verdict = judge("first", cold, "second", warm)
    assert verdict.finding is None
    assert verdict.text.startswith("no verdict: program latency")
    assert "an engine step took 0.33 times as long" in verdict.text


def test_contrary_findings_in_steps_and_seconds_are_no_verdict() -> None:
    verdict = judge("fcfs", run(1.0, seed=1), "boost", run(0.7, seed=2, step_s=0.017))
    assert verdict.finding is None
    assert ": boost is faster. Repeat" in verdict.text


def test_servers_without_reports_are_judged_by_seconds() -> None:
    def bare(outcomes: list[ProgramOutcome]) -> list[ProgramOutcome]:
        return [
            outcome(each.token_latency_s, program=each.program, latency_steps=None, token_latency_steps=None)
            for each in outcomes
        ]

    verdict = judge("vllm", bare(run(1.0, seed=1)), "other", bare(run(0.7, seed=2)))
    assert (verdict.finding, verdict.step_time) == (FASTER, None)
    assert set(verdict.ratios) == {"latency_s", "token_latency_s"}


def test_few_programs_are_no_verdict() -> None:
    few = run(1.0, seed=1, count=4)
    verdict = judge("a", few, "b", [*few, outcome(1.0, program="another")])
    assert verdict.finding is None
    assert verdict.text == "no verdict: 4 programs finished in both runs, of 5 needed"
