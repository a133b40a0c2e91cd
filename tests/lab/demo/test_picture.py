"""The picture shows what was measured, and its title says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.report import LoadComparison, Run
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.picture import picture_title, write_picture
from autellix_lab.workload.generate import generate_programs

PROGRAMS = generate_programs("chat", 4, seed=1)


def run(policy: str, response_s: float) -> Run:
    results = [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=call.id * response_s,
            finish_s=(call.id + 1) * response_s,
            output_tokens=call.decode_tokens,
        )
        for program in PROGRAMS
        for call in program.calls
    ]
    arrivals_s = (0.0,) * len(PROGRAMS)
    found = outcomes(PROGRAMS, arrivals_s, results)
    return Run(
        policy=policy,
        round_number=1,
        summary=summarise(PROGRAMS, arrivals_s, results),
        outcomes=found,
        capacity_tokens_per_s=100.0,
    )


def load(factor: float) -> LoadComparison:
    runs = [run("fcfs", 1.0), run("boost", factor)]
    return LoadComparison(name="saturation", rho=2.0, policies=("fcfs", "boost"), runs=runs)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    write_picture(tmp_path / "p.png", [("slots short", load(0.5)), ("KV memory scarce", load(0.9))])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((0.5, 0.9), "Programs finish sooner under boost than under fcfs"),
        ((1.0, 1.2), "Programs finish no sooner under boost than under fcfs"),
        ((0.5, 1.2), "When programs finish under boost and fcfs: sooner in one case, later in the other"),
    ],
)
def test_the_title_follows_the_figures(factors: tuple[float, ...], expected: str) -> None:
    assert picture_title([load(factor) for factor in factors]) == expected
