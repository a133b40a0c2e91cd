"""Draws a sweep: latency over offered load, one line for each case."""

from __future__ import annotations

from pathlib import Path

from autellix_lab.sim.experiment import SweepResult
from autellix_lab.sim.figures.base import Figure, Panel, Series
from autellix_lab.sim.figures.drawing import draw

PANELS = {"mean": "token_latency_s.mean", "p99": "token_latency_s.p99"}
LOAD_LABEL = "offered load (1: full batches, perfect cache)"


def write_sweep_plot(path: Path, result: SweepResult, title: str) -> None:
    """Draw mean and p99 of program token latency over load, with 95 % intervals over the seeds.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    panels = tuple(
        Panel(name, LOAD_LABEL, "program token latency (s)", _lines(result, metric), is_log_y=True)
        for name, metric in ((f"{title}: mean", PANELS["mean"]), ("p99", PANELS["p99"]))
    )
    draw(Figure(name="sweep", title=title, panels=panels), path)


def _lines(result: SweepResult, metric: str) -> tuple[Series, ...]:
    return tuple(
        Series(case, tuple((load, result.interval(case, load, metric)) for load in result.loads))
        for case in result.cases
    )
