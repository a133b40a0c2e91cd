"""The demo ends in one table and one sentence, which follow the figures; the rest goes to a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from autellix_lab.bench.calibrate import Calibration
from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.report import LoadComparison, Run
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.comparison import PartComparison, comparison_report
from autellix_lab.demo.parts import DemoOptions, Part, demo_parts
from autellix_lab.demo.summary import last_screen, lost_verdict, verdict, write_details

OPTIONS = DemoOptions(kv_programs=4, programs=6)
PARTS = demo_parts(OPTIONS)
SPEED = Calibration(tokens_per_s=100.0, service_per_token_s=None, window_s=1.0, calls=1)
MEMORY, SLOTS = (part.load.name for part in PARTS)


def run(part: Part, policy: str, round_number: int, call_s: float, error: str | None = None) -> Run:
    programs = part.load.programs
    results = [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=call.id * call_s,
            finish_s=(call.id + 1) * call_s,
            prompt_tokens=call.prefill_tokens,
            cached_tokens=call.shared_prefix_tokens,
            output_tokens=call.decode_tokens,
            error=error,
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
        capacity_tokens_per_s=100.0,
    )


def played(
    *factors: float, error: str | None = None, others: tuple[str, ...] = ("boost",)
) -> list[PartComparison]:
    """Return both parts, in which the others' calls take these times as long as the baseline's, by round."""
    found = []
    for part in PARTS:
        load = LoadComparison(name=part.load.name, rho=part.load.rho, policies=("fcfs", *others))
        for number, factor in enumerate(factors, start=1):
            load.runs.append(run(part, "fcfs", number, 1.0, error))
            load.runs.extend(run(part, policy, number, factor) for policy in others)
        found.append(PartComparison(part=part, load=load, calibration=SPEED, bounds=()))
    return found


def shown(found: list[PartComparison], options: DemoOptions = OPTIONS) -> list[str]:
    """Return the lines of the last screen on a terminal of 80 columns."""
    console = Console(width=80, record=True)
    with console.capture() as captured:
        for line in last_screen(options, found, comparison_report(options, found), 290.0):
            console.print(line, highlight=False)
    return captured.get().splitlines()


MOST = "With scarce KV memory, agents finished in 0.47 of the time; with scarce slots, they"
SEE = "noise or loss, see docs/demo.md."


@pytest.mark.parametrize(
    ("memory", "slots", "expected"),
    [
        pytest.param(
            (0.45, 0.47, 0.48),
            (0.98, 0.94, 0.90),
            f"{MOST} finished in 0.94 of the time. None of 6 rounds was slower.",
            id="all better",
        ),
        pytest.param(
            (0.45, 0.47, 0.48),
            (1.02, 0.94, 0.90),
            f"{MOST} finished in 0.94 of the time. "
            f"1 of 6 rounds was slower (scarce slots, round 1: 1.02): {SEE}",
            id="one round worse",
        ),
        pytest.param(
            (0.45, 0.47, 1.20),
            (1.07, 1.05, 1.00),
            f"{MOST} took 1.05 times as long. 3 of 6 rounds were slower (scarce KV memory, round 3: 1.20; "
            f"scarce slots, round 1: 1.07; scarce slots, round 2: 1.05): {SEE}",
            id="one median worse",
        ),
        pytest.param(
            (1.04,),
            (1.001,),
            "With scarce KV memory, agents took 1.04 times as long; with scarce slots, they took as long. "
            f"1 of 2 rounds was slower (scarce KV memory, round 1: 1.04): {SEE}",
            id="medians worse or equal",
        ),
    ],
)
def test_the_sentence_follows_the_figures(
    memory: tuple[float, ...], slots: tuple[float, ...], expected: str
) -> None:
    assert verdict({MEMORY: memory, SLOTS: slots}) == expected


def test_lost_calls_are_named_in_place_of_times() -> None:
    assert lost_verdict(1, ["gone"]) == "1 call was lost, so times are not compared. Errors: gone"
    assert lost_verdict(3, "abcd") == "3 calls were lost, so times are not compared. Errors: a; b; c"


def test_the_last_screen_is_short_and_has_the_four_figures_of_both_parts() -> None:
    lines = shown(played(0.5, 1.2, 0.6))
    text = "\n".join(lines)

    assert len(lines) <= 25
    assert max(len(line) for line in lines) <= 80
    assert (
        f"- scarce KV memory (5,728 tokens): 4 agents with shared lists of tools, {PARTS[0].load.calls} calls"
        in text
    )
    for title in ("program latency, mean (s)", "program latency, p95 (s)", "time per token, mean (ms)"):
        assert sum(title in line and "0.50 1.20 0.60" in line for line in lines) == 2
    assert sum("prompts found in the cache" in line and "%" in line for line in lines) == 2
    assert "2 of 6 rounds were slower" in text
    assert "demo-results/comparison.png" in text
    assert "demo-results/report.txt" in text
    assert "target" not in text


def test_each_of_several_policies_has_a_sentence() -> None:
    options = dataclasses.replace(OPTIONS, policies=("fcfs", "plas", "atlas"))
    lines = shown(played(0.5, others=("plas", "atlas")), options)

    assert sum(line.startswith(("plas: With", "atlas: With")) for line in lines) == 2


def test_the_screen_compares_nothing_where_calls_were_lost() -> None:
    lines = shown(played(0.5, error="gone"))
    text = "\n".join(lines)

    assert "calls were lost" in text
    assert "gone" in text
    assert "of the time" not in text
    assert "comparison.png" not in text


def test_the_report_begins_with_losses_and_ends_with_targets(tmp_path: Path) -> None:
    found = played(1.2)
    write_details(tmp_path / "report.txt", found, comparison_report(OPTIONS, found))
    lines = (tmp_path / "report.txt").read_text().splitlines()

    assert lines[0].startswith("scarce KV memory: boost is slower than fcfs in program")
    assert "target at most 1 in every round: 0 of 1" in lines[-1]
    assert any("p99" in line and "1.20" in line for line in lines)


def test_the_report_names_the_errors_of_lost_calls_and_bounds(tmp_path: Path) -> None:
    found = [dataclasses.replace(item, bounds=(0.5, 1.0)) for item in played(0.5, error="gone")]
    write_details(tmp_path / "report.txt", found, comparison_report(OPTIONS, found))
    text = (tmp_path / "report.txt").read_text()

    assert text.startswith("gone\n")
    assert "bounds of levels (s): 0.5, 1" in text
    assert "p99" not in text
