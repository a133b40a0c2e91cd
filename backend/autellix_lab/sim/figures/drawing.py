"""Draws a figure's panels into one PNG."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from autellix_lab.sim.figures.base import Figure, Gantt, Panel
from autellix_lab.workload.statistics import Interval

COLOURS = ("#0072b2", "#8c8c8c", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMNS = 3
PANEL_SIZE = (4.4, 3.2)
COLOUR_COUNT = 32
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
    from PIL import Image

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
    picture = io.BytesIO()
    canvas.savefig(picture)
    # Few colours, so that the file is a third as large.
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOUR_COUNT).save(
        path, optimize=True
    )


def _lines(axes: Any, panel: Panel) -> None:
    for index, series in enumerate(panel.series):
        if not series.points:
            continue
        xs = [x for x, _ in series.points]
        means = [y.mean for _, y in series.points]
        spreads = [_spread(y) for _, y in series.points]
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
            set_formatter(_plain_ticks())
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def _plain_ticks() -> Any:
    """Return a formatter that writes 0.02, not 2 x 10^-2, and few minor ticks where there is a "
    "decade or more."""
    from matplotlib.ticker import LogFormatter

    return LogFormatter(minor_thresholds=(2, 0.7))


def _bars(axes: Any, panel: Panel) -> None:
    (series,) = panel.series
    means = [y.mean for _, y in series.points]
    spreads = [_spread(y) for _, y in series.points]
    axes.bar(panel.groups, means, yerr=spreads, color=COLOURS[: len(means)], width=0.6, capsize=2)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, axis="y", alpha=0.3)


def _spread(value: Interval) -> float:
    # The interval of a single run is infinite, and not drawn.
    return value.half_width if math.isfinite(value.half_width) else 0.0


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
