"""Makes figures by name."""

from __future__ import annotations

from collections.abc import Callable

from autellix_lab.sim.figures.balancing import figure_14, figure_15
from autellix_lab.sim.figures.base import Figure
from autellix_lab.sim.figures.latency import figure_12, figure_13, figure_today
from autellix_lab.sim.figures.memory import figure_16, figure_17, figure_19
from autellix_lab.sim.figures.optimum import figure_18
from autellix_lab.sim.figures.study import RunSweep, Study
from autellix_lab.sim.figures.unit_steps import figure_2, figure_9

MakeFigure = Callable[[Study, RunSweep], Figure]

FIGURES: dict[str, MakeFigure] = {
    "2": lambda _study, _run: figure_2(),
    "9": lambda _study, _run: figure_9(),
    "12": figure_12,
    "13": figure_13,
    "14": figure_14,
    "15": figure_15,
    "16": figure_16,
    "17": figure_17,
    "18": figure_18,
    "19": figure_19,
    "today": figure_today,
}
"""Function by the paper's number; `today` is ours."""


def make_figure(name: str, study: Study, run: RunSweep) -> Figure:
    """Make one figure.

    Raises:
        ValueError: there is no such figure; the message lists those that exist.
    """
    if name not in FIGURES:
        raise ValueError(f"figure is {name!r}; expected one of {', '.join(FIGURES)}")
    return FIGURES[name](study, run)
