"""The picture shows what was measured, and its title says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_lab.bench.metrics import outcomes, summarise
from autellix_lab.bench.report import LoadComparison, Run
from autellix_lab.bench.results import CallResult
from autellix_lab.demo.picture import draw_picture, panel_title, write_picture
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.statistics import statistics_of

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
            submit_step=100 * call.id * response_s,
            finish_step=100 * (call.id + 1) * response_s,
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
    )


def load(name: str, factor: float) -> LoadComparison:
    runs = [run("fcfs", 1.0), run("boost", factor)]
    return LoadComparison(name=name, rho=2.0, policies=("fcfs", "boost"), runs=runs)


def both(memory: float, slots: float) -> list[LoadComparison]:
    return [load("scarce KV memory", memory), load("scarce slots", slots)]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    write_picture(tmp_path / "p.png", both(0.5, 0.9))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_bars_show_the_figures_and_the_ratios() -> None:
    """Both axes of time begin at 0, and each text lies within its panel."""
    figure = draw_picture(both(0.5, 1.2))
    for axis, factor in zip(figure.axes, (0.5, 1.2), strict=True):
        expected = statistics_of(
            [outcome.token_latency_steps or 0.0 for outcome in run("fcfs", 1.0).outcomes]
        )
        mean, p95 = expected["mean"], expected["p95"]
        widths = [bar.get_width() for bar in axis.patches]
        assert widths == pytest.approx([mean, factor * mean, p95, factor * p95], rel=0.005)
        assert sum(f", {factor:.2f}x" in text.get_text() for text in axis.texts) == 2
        assert axis.get_xlim()[0] == 0
        assert axis.get_xlim()[1] > max(widths)


def test_no_text_lies_over_another_or_beyond_the_picture() -> None:
    figure = draw_picture(both(0.5, 1.2))
    figure.canvas.draw()
    texts = [text for axis in figure.axes for text in (axis._left_title, *axis.texts)] + figure.texts
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) == 2 * 7 + 2
    for number, box in enumerate(boxes):
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_titles_follow_the_figures() -> None:
    assert [panel_title(item) for item in both(0.5, 1.2)] == [
        "With scarce KV memory,\na token took 0.50x as many steps",
        "With scarce slots,\na token took 1.20x as many steps",
    ]
