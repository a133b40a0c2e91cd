"""The picture of the demo: how long each program took, under each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autellix_lab.bench.report import LoadComparison, format_number

COLOURS = ("#9a9a9a", "#0b6e8f", "#c8641b", "#5c8a3a", "#7d4f9e")

Panel = tuple[str, LoadComparison]
"""What the machine lacks, in words, and the results of that load."""


def write_picture(path: Path, panels: Sequence[Panel]) -> None:
    """Draw the programs of each panel, the fastest first, with the ratios to the baseline written on it."""
    # Imported here: it takes a second, and only the end of the demo needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * len(panels), 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(picture_title([load for _, load in panels]), fontsize=14, fontweight="bold")
    for axis, (title, load) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axis, title, load)
    figure.savefig(path, dpi=130)


def picture_title(loads: Sequence[LoadComparison]) -> str:
    """Return what the picture shows: whether programs finish sooner than under the baseline."""
    base, shown = loads[0].policies[0], loads[0].policies[-1]
    means = [load.pooled_ratios(shown)["latency_s"]["mean"] for load in loads]
    if all(mean < 1 for mean in means):
        return f"Programs finish sooner under {shown} than under {base}"
    if all(mean >= 1 for mean in means):
        return f"Programs finish no sooner under {shown} than under {base}"
    return f"When programs finish under {shown} and {base}: sooner in one case, later in the other"


def _draw_panel(axis: Any, title: str, load: LoadComparison) -> None:
    base = load.policies[0]
    for policy, colour in zip(load.policies, COLOURS, strict=False):
        latencies_s = sorted(item.latency_s for run in load.of(policy) for item in run.outcomes)
        shares = [100 * (index + 1) / len(latencies_s) for index in range(len(latencies_s))]
        mean = sum(latencies_s) / len(latencies_s)
        label = f"{policy}: {format_number(mean)} s on average"
        axis.plot(shares, latencies_s, color=colour, linewidth=3, label=label)
    for row, (policy, colour) in enumerate(zip(load.policies[1:], COLOURS[1:], strict=False)):
        ratios = load.pooled_ratios(policy)["latency_s"]
        place = {"transform": axis.transAxes, "va": "top", "color": colour}
        axis.text(0.03, 0.80 - 0.2 * row, f"{ratios['mean']:.2f}x", fontsize=22, fontweight="bold", **place)
        axis.text(0.03, 0.71 - 0.2 * row, _ratio_text(policy, base, ratios), fontsize=9, **place)
    axis.set_title(title)
    axis.set_xlabel("programs, the fastest first (%)")
    axis.set_ylabel("seconds from arrival to last answer")
    axis.set_xlim(0, 100)
    axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", frameon=False)


def _ratio_text(policy: str, base: str, ratios: Mapping[str, float]) -> str:
    others = ", ".join(f"{key} {ratios[key]:.2f}x" for key in ("p50", "p95", "p99"))
    return f"{policy} over {base}, average of all programs\n{others}"
