"""Draws a figure's panels into one PNG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from autellix_lab.sim.figures.base import Figure, Panel

COLOURS = ("#0072b2", "#8c8c8c", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMNS = 3
PANEL_SIZE = (4.4, 3.2)
DPI = 72
"""Low, so that the pictures stay small in the repository."""


def draw(figure: Figure, path: Path) -> None:
    """Write the panels of a figure as a PNG; a figure without panels writes nothing.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    if not figure.panels:
        return
    # Heavy, and not needed to make a figure's numbers. Not pyplot, which would keep global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    columns = min(COLUMNS, len(figure.panels)) if len(figure.panels) != 4 else 2
    rows = math.ceil(len(figure.panels) / columns)
    canvas = Canvas(figsize=(PANEL_SIZE[0] * columns, PANEL_SIZE[1] * rows), dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(rows, columns, squeeze=False)
    places = [axes for row in grid for axes in row]
    for axes, panel in zip(places, figure.panels, strict=False):
        _lines(axes, panel)
        axes.set_title(panel.title, fontsize=10)
    for axes in places[len(figure.panels) :]:
        axes.set_visible(False)
    canvas.savefig(path)


def _lines(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import LogFormatter

    for index, series in enumerate(panel.series):
        if not series.points:
            continue
        xs = [x for x, _ in series.points]
        means = [y.mean for _, y in series.points]
        # The interval of a single run is infinite, and not drawn.
        spreads = [y.half_width if math.isfinite(y.half_width) else 0.0 for _, y in series.points]
        axes.errorbar(
            xs,
            means,
            yerr=spreads,
            label=series.label,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
            linewidth=1.5,
            capsize=2,
        )
    if panel.is_log_y:
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            # 0.02, not 2 x 10^-2, and few minor ticks where there is a decade or more.
            set_formatter(LogFormatter(minor_thresholds=(2, 0.7)))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
