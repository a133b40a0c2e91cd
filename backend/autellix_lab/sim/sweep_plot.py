"""Draws a sweep: latency over offered load, one line for each case."""

from __future__ import annotations

import math
from pathlib import Path

from autellix_lab.sim.experiment import SweepResult

PANELS = {"mean": "token_latency_s.mean", "p99": "token_latency_s.p99"}


def write_sweep_plot(path: Path, result: SweepResult, title: str) -> None:
    """Draw mean and p99 of program token latency over load, with 95 % intervals over the seeds.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    # Imported here: it takes a second, and only a plot needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    loads = result.loads
    for axis, (name, metric) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for case in result.cases:
            found = [result.interval(case, load, metric) for load in loads]
            errors = [0.0 if math.isinf(item.half_width) else item.half_width * 1000 for item in found]
            means = [item.mean * 1000 for item in found]
            axis.errorbar(loads, means, yerr=errors, label=case, marker="o", markersize=3, capsize=3)
        axis.set_yscale("log")
        axis.set_xlabel("offered load (1: full batches, perfect cache)")
        axis.set_ylabel(f"program token latency, {name} (ms)")
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
