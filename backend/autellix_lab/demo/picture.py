"""The picture of the demo: how long agents took under each policy in each part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autellix_lab.bench.report import LoadComparison, format_number
from autellix_lab.demo.summary import mean_ratios, verdict

COLOURS = ("#9a9a9a", "#0b6e8f", "#c8641b", "#5c8a3a", "#7d4f9e")
STATISTICS = (("mean", "average"), ("p95", "slowest 5 %"))


def write_picture(path: Path, loads: Sequence[LoadComparison]) -> None:
    """Draw a bar for each policy's mean and p95 program latency, and a dot for each round."""
    # Imported here: it takes a second, and only the end of the demo needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    policies = loads[0].policies
    height = 1.6 + 0.55 * len(STATISTICS) * len(policies)
    figure = Figure(figsize=(5.2 * len(loads), height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(picture_title(loads), fontsize=15, fontweight="bold", x=0.01, ha="left")
    for axis, load in zip(figure.subplots(1, len(loads), squeeze=False)[0], loads, strict=True):
        _draw_panel(axis, load)
    figure.savefig(path, dpi=130)


def picture_title(loads: Sequence[LoadComparison]) -> str:
    """Return the first sentence of the last policy's verdict."""
    return verdict(mean_ratios(loads, loads[0].policies[-1])).split(". ")[0]


def _draw_panel(axis: Any, load: LoadComparison) -> None:
    base = load.policies[0]
    for group, (key, title) in enumerate(STATISTICS):
        for row, (policy, colour) in enumerate(zip(load.policies, COLOURS, strict=False)):
            place = -(group * (len(load.policies) + 0.8) + row)
            value = load.pooled(policy)["latency_s"][key]
            axis.barh(place, value, height=0.86, color=colour, label=policy if not group else None)
            rounds = [run.summary.metrics["latency_s"][key] for run in load.of(policy)]
            axis.plot(rounds, [place] * len(rounds), "o", color="black", markersize=3.5, alpha=0.6)
            text = f"{format_number(value)} s"
            if policy != base:
                text += f"  ({load.pooled_ratios(policy)['latency_s'][key]:.2f}x)"
            axis.text(max(value, *rounds), place, f"  {text}", va="center", fontsize=11)
        middle = -(group * (len(load.policies) + 0.8) + (len(load.policies) - 1) / 2)
        axis.text(
            -0.02, middle, title, va="center", ha="right", transform=axis.get_yaxis_transform(), fontsize=11
        )
    axis.set_title(load.name, fontsize=13, loc="left")
    axis.set_xlabel("seconds from arrival to last answer")
    axis.set_xlim(0, 1.3 * axis.get_xlim()[1])
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.legend(loc="lower right", frameon=False)
