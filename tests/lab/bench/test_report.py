from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.report import (
    LoadComparison,
    Run,
    comparison_table,
    losses,
    report_mapping,
    targets,
    write_json,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.generate import generate_programs


def run(policy: str, round_number: int, factor: float) -> Run:
    programs = generate_programs("chat", 4, seed=1)
    results = [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=float(call.id),
            finish_s=call.id + factor,
            output_tokens=call.decode_tokens,
            receipt={
                "arrival_step": call.id,
                "finish_step": call.id + factor,
                "wait_s": factor,
                "preemptions": 0,
                "service_s": factor / 2,
            },
        )
        for program in programs
        for call in program.calls
    ]
    arrivals_s = (0.0,) * len(programs)
    return Run(
        policy=policy,
        round_number=round_number,
        summary=summarise(programs, arrivals_s, results),
        outcomes=outcomes(programs, arrivals_s, results),
    )


def load(*factors: float) -> LoadComparison:
    found = LoadComparison(name="saturation", rho=1.5, policies=("fcfs", "atlas"))
    for number, factor in enumerate(factors, start=1):
        found.runs.extend((run("fcfs", number, 1.0), run("atlas", number, factor)))
    return found


GOALS = {("token_latency_s", "mean"): 0.5, ("latency_s", "p95"): 1.0}


def test_targets_are_judged_round_by_round() -> None:
    mean, p95 = targets(load(0.4, 0.6), GOALS)
    assert mean == (
        "saturation: atlas, mean program token latency (ms/token): 0.40, 0.60 of fcfs; "
        "target at most 0.5 in every round: 1 of 2"
    )
    assert p95.startswith("saturation: atlas, p95 program latency (s): ")
    assert p95.endswith("target at most 1 in every round: 2 of 2")
    assert losses(load(0.4, 0.5), tolerance=0.05) == []


def test_losses_are_listed_the_worst_first() -> None:
    lines = losses(load(1.2), tolerance=0.05)
    assert any(
        "atlas is slower than fcfs in program token latency (steps/token): " in line
        and "mean 1.20 (by round 1.20)" in line
        for line in lines
    )
    shown = [float(line.split("(by round ")[1].split(")")[0]) for line in lines]
    assert shown == sorted(shown, reverse=True)


def test_the_table_shows_every_metric_and_round() -> None:
    console = Console(record=True, width=200)
    with console.capture() as captured:
        console.print(comparison_table(load(0.4, 0.5)))
    text = captured.get()
    for expected in (
        "program token latency (ms/token)",
        "program latency (steps)",
        "p99",
        "0.45",
        "0.40 0.50",
    ):
        assert expected in text
    assert "rho = 1.5" in text


def test_the_report_is_json(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json", report_mapping([load(0.5)], {"seed": 1}))
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["loads"][0]["ratios"]["atlas"]["token_latency_s"]["mean"] == 0.5
    assert len(report["loads"][0]["runs"][0]["outcomes"]) == 4


def test_one_disturbed_round_does_not_decide() -> None:
    disturbed = load(0.4, 3.0, 0.5)
    assert (disturbed.shown_ratio("atlas", "latency_s", "mean") or 1.0) < 0.95
    assert disturbed.worse_than("atlas", 1.05) == []
    assert [entry["latency_s"]["mean"] > 1.05 for entry in disturbed.ratios_by_round("atlas")] == [
        False,
        True,
        False,
    ]
