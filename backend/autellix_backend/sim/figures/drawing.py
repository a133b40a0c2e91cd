"""Draws a figure's panels into one PNG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from autellix_backend.sim.figures.base import Figure, Gantt, Panel

__all__ = ["draw"]

COLOURS = ("#0072b2", "#8c8c8c", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMNS = 3
PANEL_SIZE = (4.4, 3.2)
DPI = 80
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
        if isinstance(panel, Gantt):
            _gantt(axes, panel)
        elif panel.is_bars:
            _bars(axes, panel)
        else:
            _lines(axes, panel)
        axes.set_title(panel.title, fontsize=10)
    for axes in places[len(figure.panels) :]:
        axes.set_visible(False)
    canvas.savefig(path)


def _lines(axes: Any, panel: Panel) -> None:
    for index, series in enumerate(panel.series):
        if not series.points:
            continue
        xs = [x for x, _ in series.points]
        means = [y.mean for _, y in series.points]
        # An interval of a single run is infinite, and not drawn.
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
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def _bars(axes: Any, panel: Panel) -> None:
    bottoms = [0.0] * len(panel.groups)
    for index, series in enumerate(panel.series):
        heights = [y.mean for _, y in series.points]
        axes.bar(panel.groups, heights, bottom=bottoms, label=series.label, color=COLOURS[index], width=0.6)
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.legend(fontsize=8)


def _gantt(axes: Any, panel: Gantt) -> None:
    for bar in panel.bars:
        colour = COLOURS[bar.program % len(COLOURS)]
        axes.barh(bar.slot, bar.end - bar.start, left=bar.start, height=0.8, color=colour, edgecolor="white")
        axes.text(
            (bar.start + bar.end) / 2,
            bar.slot,
            bar.label,
            ha="center",
            va="center",
            fontsize=7,
            color="white",
        )
    axes.set_yticks(sorted({bar.slot for bar in panel.bars}))
    axes.set_xlabel("unit of time")
    axes.set_ylabel("slot")
