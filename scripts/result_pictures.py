"""Draws the pictures of docs/results/ from the tables of its pages.

    .venv/bin/python scripts/result_pictures.py

Writes docs/results/pictures/NAME.svg. A picture keeps the numbers that it shows in its description.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "results"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars: one for each row of a table, and in it one bar for each series."""

    page: str
    heading: str
    """The table is the first one behind this heading."""
    labels: tuple[int, ...]
    """Columns that name a row."""
    series: dict[str, tuple[int, int]]
    """Column, and place of the number in its cell, by label."""
    unit: str
    is_log: bool = False
    baseline: float | None = 1.0


PICTURES: dict[str, Bars] = {
    "coding": Bars(
        page="tables.md",
        heading="Without host memory",
        labels=(0, 1),
        series={"default": (2, 0), "ThunderAgent's rule": (3, 0), "Continuum's rule": (4, 0)},
        unit="mean program latency over FCFS",
    ),
    "peers": Bars(
        page="peers.md",
        heading="On one real engine",
        labels=(0,),
        series={"in engine steps": (1, 0), "in seconds": (2, 0)},
        unit="mean latency of agents with tools over plain vLLM",
    ),
    "default": Bars(
        page="tables.md",
        heading="Comparison with other schedulers",
        labels=(0,),
        series={"default": (1, 1), "plas": (2, 1), "ThunderAgent": (3, 1), "Continuum": (4, 1)},
        unit="mean program latency over FCFS, load 1.3",
    ),
    "overhead": Bars(
        page="tables.md",
        heading="Beside other gateways",
        labels=(0,),
        series={"plain pass-through": (1, 0), "autellix": (2, 0), "vllm-router": (3, 0), "smg": (4, 0)},
        unit="ms of CPU time for a call; LiteLLM takes 16 to 52",
        baseline=None,
    ),
    "hardening": Bars(
        page="hardening.md",
        heading="Measured",
        labels=(0,),
        series={"behind nginx": (2, 0), "without a proxy": (1, 0)},
        unit="p99 of the quiet tenant, times alone",
        is_log=True,
    ),
}


def values_of(bars: Bars) -> dict[str, list[float]]:
    """Return the numbers of a picture, by the label of their row, in the order of its series."""
    _, found, text = (PAGES / bars.page).read_text(encoding="utf-8").partition(f"# {bars.heading}\n")
    if not found:
        raise ValueError(f"{bars.page} has no heading {bars.heading!r}")
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        ", ".join(row[column] for column in bars.labels): [
            float(_NUMBER.findall(row[column])[at].replace(",", "")) for column, at in bars.series.values()
        ]
        for row in rows
    }


def draw(name: str, picture: Bars) -> None:
    """Write a picture."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9})
    values = values_of(picture)
    figure = draw_bars(picture, values)
    figure.savefig(
        PAGES / "pictures" / f"{name}.svg",
        bbox_inches="tight",
        metadata={"Date": None, "Description": json.dumps(values)},
    )
    plt.close(figure)


def draw_bars(bars: Bars, values: dict[str, list[float]]) -> Any:
    """Return the figure of groups of bars."""
    from matplotlib import pyplot as plt

    height = 0.8 / len(bars.series)
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.16 * len(values) * (1 + len(bars.series))))
    for number, label in enumerate(bars.series):
        places = [row + number * height for row in range(len(values))]
        drawn = axes.barh(places, [row[number] for row in values.values()], height, label=label)
        axes.bar_label(drawn, fmt="{:g}", padding=2, fontsize=7)
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(values))], list(values))
    axes.invert_yaxis()
    axes.margins(x=0.1)
    if bars.is_log:
        axes.set_xscale("log")
    if bars.baseline is not None:
        axes.axvline(bars.baseline, color="black", linewidth=0.8)
    axes.set_xlabel(bars.unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def main() -> None:
    """Draw all pictures."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    (PAGES / "pictures").mkdir(exist_ok=True)
    for name, picture in PICTURES.items():
        draw(name, picture)


if __name__ == "__main__":
    main()
