"""The demo ends in one table and one sentence, which follow the figures; the rest goes to a file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import pytest
from rich.console import Console

from autellix_lab.bench.calibrate import Calibration
from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.report import LoadComparison, Run, format_number
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.comparison import PartComparison, comparison_report
from autellix_lab.demo.parts import DemoOptions, Part, demo_parts
from autellix_lab.demo.picture import panel_title
from autellix_lab.demo.summary import last_screen, lost_verdict, verdict, write_details

OPTIONS = DemoOptions(kv_programs=4, programs=6)
PARTS = demo_parts(OPTIONS)
SPEED = Calibration(tokens_per_s=100.0, window_s=1.0, calls=1)
CALL_STEPS, STEP_S = 100.0, 0.01


def run(
    part: Part, policy: str, round_number: int, call_steps: float, step_s: float, error: str | None = None
) -> Run:
    programs = part.load.programs
    results = [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=call.id * call_steps * step_s,
            finish_s=(call.id + 1) * call_steps * step_s,
            prompt_tokens=call.prefill_tokens,
            cached_tokens=call.shared_prefix_tokens,
            output_tokens=call.decode_tokens,
            error=error,
            submit_step=call.id * call_steps,
            finish_step=(call.id + 1) * call_steps,
        )
        for program in programs
        for call in program.calls
    ]
    return Run(
        policy=policy,
        round_number=round_number,
        summary=summarise(programs, None, results),
        outcomes=outcomes(programs, None, results),
    )


def played(
    *factors: float,
    error: str | None = None,
    others: tuple[str, ...] = ("boost",),
    memory: Sequence[float] | None = None,
    slower: Sequence[float] | None = None,
) -> list[PartComparison]:
    """Return both parts, in which the others' calls take these times the baseline's steps, by round.

    `memory` has other factors for the part with scarce memory; `slower`: how much longer a step takes in the
    turns of the others.
    """
    found = []
    for part in PARTS:
        load = LoadComparison(name=part.load.name, rho=part.load.rho, policies=("fcfs", *others))
        mine = factors if memory is None or part.name == "slots" else memory
        for number, factor in enumerate(mine, start=1):
            step_s = STEP_S * (slower[number - 1] if slower and part.name == "slots" else 1.0)
            load.runs.append(run(part, "fcfs", number, CALL_STEPS + number, STEP_S, error))
            load.runs.extend(
                run(part, policy, number, factor * (CALL_STEPS + number), step_s) for policy in others
            )
        found.append(PartComparison(part=part, load=load, calibration=SPEED, bounds=()))
    return found


def shown(found: list[PartComparison], options: DemoOptions = OPTIONS) -> list[str]:
    """Return the lines of the last screen on a terminal of 80 columns."""
    console = Console(width=80, record=True)
    with console.capture() as captured:
        for line in last_screen(options, found, comparison_report(options, found), 290.0):
            console.print(line, highlight=False)
    return captured.get().splitlines()


OF = "of the engine's steps"
MOST = f"With scarce KV memory, a token took 0.47 {OF}, an agent 0.47 {OF}; with scarce slots, a token took"
SEE = "see docs/demo.md."


@pytest.mark.parametrize(
    ("memory", "slots", "expected"),
    [
        pytest.param(
            (0.47,),
            (0.94,),
            f"{MOST} 0.94 {OF}, an agent 0.94 {OF}. None of 2 rounds was slower.",
            id="all better",
        ),
        pytest.param(
            (0.47,),
            (1.02,),
            f"{MOST} 1.02 times as many steps, an agent 1.02 times as many steps. "
            f"1 of 2 rounds was slower (scarce slots, round 1: 1.02), {SEE}",
            id="one part worse",
        ),
        pytest.param(
            (1.04,),
            (1.001,),
            "With scarce KV memory, a token took 1.04 times as many steps, an agent 1.04 times as many "
            "steps; with scarce slots, a token took as many steps, an agent as many steps. "
            f"1 of 2 rounds was slower (scarce KV memory, round 1: 1.04), {SEE}",
            id="worse or equal",
        ),
    ],
)
def test_the_sentence_follows_the_figures(
    memory: tuple[float, ...], slots: tuple[float, ...], expected: str
) -> None:
    loads = [item.load for item in played(*slots, memory=memory)]
    assert verdict(loads, "boost") == expected


def test_the_effect_is_stated_in_standard_errors_of_the_rounds() -> None:
    ratios = (0.88, 0.90, 0.95)
    expected = (1 - fmean(ratios)) / (stdev(ratios) / 3**0.5)
    text = verdict([item.load for item in played(*ratios)], "boost")
    assert text.count(f"({expected:.0f} standard errors below 1)") == 4
    assert "standard errors above 1" in verdict([item.load for item in played(1.1, 1.2)], "boost")
    # Three rounds that happen to agree.
    text = verdict([item.load for item in played(0.90, 0.90, 0.9001)], "boost")
    assert text.count("(over 20 standard errors below 1)") == 4


def test_a_slower_machine_is_named_and_changes_no_step() -> None:
    """From a tenth on, and whoever had it."""
    even, uneven = (
        [item.load for item in played(0.9, 0.9, 0.9, 0.9, memory=(0.5,), slower=slower)]
        for slower in (None, (1.09, 1.29, 1.0, 1 / 1.68))
    )
    text = verdict(uneven, "boost")
    assert text.startswith(verdict(even, "boost"))
    assert text.endswith(
        "With scarce slots, a step took 1.29 times as long under boost in round 2, 1.68 times as long under "
        "fcfs in round 4. The machine was slower there: compare steps, not seconds."
    )


@pytest.mark.parametrize(("slower", "favoured"), [((1.4, 1.5), "boost"), ((0.7, 0.8), "fcfs")])
def test_steps_that_differ_in_every_round_are_not_put_down_to_other_work(
    slower: tuple[float, ...], favoured: str
) -> None:
    text = verdict([item.load for item in played(0.9, 0.9, memory=(0.5,), slower=slower)], "boost")
    assert text.endswith(
        f"That is so in every round, so other work is not the reason: steps favour {favoured}. "
        "Compare seconds there, too."
    )


def figures_of(lines: list[str]) -> dict[tuple[str, str], list[float]]:
    """Return the numbers of each row of the screen's table, by part and title."""
    found: dict[tuple[str, str], list[float]] = {}
    part = ""
    for line in lines:
        if line.strip() in ("scarce KV memory", "scarce slots"):
            part = line.strip()
        elif part and line.startswith("  ") and "%" not in line:
            title, *cells = re.split(r" {2,}", line.strip())
            found[part, title] = [float(cell) for text in cells for cell in text.split()]
    return found


@pytest.mark.parametrize("factors", [(0.5, 1.2, 0.6), (0.891, 0.904, 0.887), (1.12, 1.2, 0.82)])
def test_a_reader_can_compute_every_ratio_of_the_screen(factors: tuple[float, ...]) -> None:
    """One name has one number: ratios are quotients of the columns, in sentence and picture too."""
    slower = (1.3, 0.95, 1.7)
    found = played(*factors, memory=(0.47, 0.513, 0.5), slower=slower)
    lines = shown(found)
    rows = figures_of(lines)

    assert len(rows) == 5 + 5
    for base, other, ratio, *rounds in rows.values():
        assert ratio == pytest.approx(other / base, abs=0.0051)
        assert len(rounds) == 3
    rounds = rows["scarce slots", "program latency, mean (steps)"][3:]
    assert rounds == pytest.approx(factors, abs=0.0051)
    for policy in (0, 1):
        steps, seconds, step_ms = (
            rows["scarce slots", title][policy]
            for title in ("program latency, mean (steps)", "program latency, mean (s)", "time of a step (ms)")
        )
        assert 1000 * seconds / steps == pytest.approx(step_ms, rel=0.005)
    assert rows["scarce slots", "time of a step (ms)"][3:] == pytest.approx(slower, abs=0.0051)
    text = " ".join(" ".join(lines).split())
    for part, title, begin in (
        ("scarce KV memory", "time per token, mean (steps)", "a token took"),
        ("scarce KV memory", "program latency, mean (steps)", "an agent"),
        ("scarce slots", "time per token, mean (steps)", "a token took"),
        ("scarce slots", "program latency, mean (steps)", "an agent"),
    ):
        ratio = rows[part, title][2]
        assert f"{begin} {ratio:.2f}" in text or (ratio == 1 and f"{begin} as many" in text)
    titles = [panel_title(item.load) for item in found]
    for part, title in zip(("scarce KV memory", "scarce slots"), titles, strict=True):
        assert f"{rows[part, 'time per token, mean (steps)'][2]:.2f}x" in title


def test_the_report_has_the_screens_numbers(tmp_path: Path) -> None:
    found = played(0.891, 0.904, 0.887, slower=(1.3, 0.95, 1.7))
    write_details(tmp_path / "report.txt", found, comparison_report(OPTIONS, found))
    report = (tmp_path / "report.txt").read_text()
    rows = figures_of(shown(found))
    for (_, title), (base, other, ratio, *_) in rows.items():
        if title.startswith("program latency, mean"):
            cells = (format_number(base), format_number(other), f"{ratio:.2f}")
            assert any(
                [cell.strip() for cell in line.split("│")][3:6] == list(cells) for line in report.splitlines()
            ), (title, cells)


def test_lost_calls_are_named_in_place_of_times() -> None:
    assert lost_verdict(1, ["gone"]) == "1 call was lost, so times are not compared. Errors: gone"
    assert lost_verdict(3, "abcd") == "3 calls were lost, so times are not compared. Errors: a; b; c"


def test_the_last_screen_is_short_and_has_the_four_figures_of_both_parts() -> None:
    lines = shown(played(0.5, 1.2, 0.6))
    text = "\n".join(lines)

    assert len(lines) <= 36
    assert max(len(line) for line in lines) <= 80
    assert (
        f"- scarce KV memory (5,728 tokens): 4 agents with shared lists of tools, {PARTS[0].load.calls} calls"
        in text
    )
    titles = [title for _, title in figures_of(lines)]
    assert titles == 2 * [
        *("time per token, mean (steps)", "program latency, mean (steps)", "program latency, p95 (steps)"),
        *("program latency, mean (s)", "time of a step (ms)"),
    ]
    note = "Medians of 3 rounds and their ratios. 450 prefilled tokens count as one more step."
    assert note in " ".join(text.split())
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
