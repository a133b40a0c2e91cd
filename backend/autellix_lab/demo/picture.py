"""The picture of the demo: how long agents took under each policy in each part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autellix_lab.bench.report import LoadComparison, format_number
from autellix_lab.demo.summary import named

COLOURS = ("#9a9a9a", "#0b6e8f", "#c8641b", "#5c8a3a", "#7d4f9e")
STATISTICS = (("mean", "average agent"), ("p95", "slowest agents (p95)"))
METRIC = "token_latency_steps"


def write_picture(path: Path, loads: Sequence[LoadComparison]) -> None:
    """Write the picture as a PNG file."""
    draw_picture(loads).savefig(path, dpi=130)


def draw_picture(loads: Sequence[LoadComparison]) -> Any:
    """Return a figure with a bar for the mean and the p95 of each policy, and a dot for each round.

    They are token latencies in steps.
    """
    # Imported here: it takes a second, and only the end of the demo needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    policies = loads[0].policies
    figure = Figure(figsize=(5.4 * len(loads), 2.2 + 0.9 * len(policies)), layout="constrained")
    FigureCanvasAgg(figure)
    title = f"The same agents under {' and '.join(map(named, policies))}"
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    note = "steps of the engine for each token of an agent; bars are medians of the rounds, dots are rounds"
    figure.supxlabel(note, fontsize=10)
    for axis, load in zip(figure.subplots(1, len(loads), squeeze=False)[0], loads, strict=True):
        _draw_panel(axis, load)
    return figure


def panel_title(load: LoadComparison) -> str:
    """Return what the last policy gained or lost in the mean."""
    ratio = load.shown_ratio(load.policies[-1], METRIC, "mean") or 0.0
    return f"With {load.name},\na token took {ratio:.2f}x as many steps"


def _draw_panel(axis: Any, load: LoadComparison) -> None:
    places, labels = [], []
    for group, (key, title) in enumerate(STATISTICS):
        first = -group * (len(load.policies) + 1.2)
        axis.text(0, first + 0.55, title, fontsize=10)
        for row, (policy, colour) in enumerate(zip(load.policies, COLOURS, strict=False)):
            place = first - row
            value = load.shown(policy, METRIC, key) or 0.0
            rounds = [run.summary.metrics[METRIC][key] for run in load.of(policy)]
            axis.barh(place, value, height=0.8, color=colour)
            axis.plot(rounds, [place] * len(rounds), "o", color="black", markersize=3.5, alpha=0.6)
            text = f"{format_number(value)} steps"
            if row:
                text += f", {load.shown_ratio(policy, METRIC, key):.2f}x"
            axis.text(max(value, *rounds), place, f"  {text}", va="center", fontsize=10)
            places.append(place)
            labels.append(policy)
    axis.set_title(panel_title(load), fontsize=12, fontweight="bold", loc="left", pad=8)
    axis.set_xlim(0, 1.35 * axis.get_xlim()[1])
    axis.set_ylim(min(places) - 0.6, 1.1)
    axis.set_yticks(places, labels)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
