"""Replay results side by side: a table with ratios to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from autellix_lab.bench.metrics import STATISTICS, metrics_of
from autellix_lab.bench.report import TITLES, format_number
from autellix_lab.bench.result_file import ReplayResult
from autellix_lab.bench.verdict import COMPARED, RunVerdict, judge
from autellix_lab.workload.statistics import jain_index

UNKNOWN = "n/a"
PLACE = ("url", "model", "when")
"""Settings of place and time, which may differ between comparable runs."""


def figures(result: ReplayResult) -> dict[str, float | None]:
    """Return the figures of a whole run; None where the endpoint did not report them.

    `fairness` is Jain's index over the programs' token latencies.
    """
    found = result.outcomes
    counted = [(item.cached_tokens, item.prompt_tokens) for item in found if item.cached_tokens is not None]
    prompt_tokens = sum(prompt for _, prompt in counted)
    preemptions = [item.preemptions for item in found if item.preemptions is not None]
    return {
        "fairness": jain_index([item.token_latency_s for item in found]) if found else None,
        "cache_hits": sum(cached for cached, _ in counted) / prompt_tokens if prompt_tokens else None,
        "preemptions": float(sum(preemptions)) if preemptions else None,
        "output_tokens": float(sum(item.output_tokens for item in found)),
        "programs": float(len(found)),
        "lost_calls": float(result.lost_calls),
        "duration_s": result.duration_s,
    }


FIGURE_TITLES = {
    "fairness": "Jain's fairness of token latency",
    "cache_hits": "cached share of prompt tokens",
    "preemptions": "preemptions",
    "output_tokens": "generated tokens",
    "programs": "programs without a lost call",
    "lost_calls": "lost calls",
    "duration_s": "duration (s)",
}


def result_table(results: Mapping[str, ReplayResult]) -> Table:
    """Return the table of labelled results; from the second on each has a column of ratios to the first."""
    base = next(iter(results))
    table = Table()
    table.add_column("metric")
    table.add_column("")
    for label in results:
        table.add_column(label, justify="right")
        if label != base:
            table.add_column(f"/ {base}", justify="right")
    metrics = {label: metrics_of(result.outcomes) for label, result in results.items()}
    for name, (title, unit, factor) in TITLES.items():
        for position, key in enumerate(STATISTICS):
            values = [found.get(name, {}).get(key) for found in metrics.values()]
            shown = (f"{title} ({unit})" if unit else title) if not position else ""
            table.add_row(shown, key, *_cells(values, factor), end_section=key == STATISTICS[-1])
    numbers = [figures(result) for result in results.values()]
    for name, title in FIGURE_TITLES.items():
        table.add_row(title, "", *_cells([found[name] for found in numbers], 1.0))
    return table


def verdicts_of(results: Mapping[str, ReplayResult]) -> dict[str, RunVerdict]:
    """Return the verdict on each labelled result beside the first."""
    (base, first), *others = results.items()
    return {label: judge(base, first.outcomes, label, each.outcomes) for label, each in others}


def ratio_table(base: str, verdicts: Mapping[str, RunVerdict]) -> Table:
    """Return the table of mean ratios to the first result, each with its interval."""
    table = Table(title="means over the programs of both runs, with 95 % intervals", title_justify="left")
    table.add_column("metric")
    for label in verdicts:
        table.add_column(f"{label} / {base}", justify="right")
        table.add_column("")
    for name in COMPARED:
        found = [verdict.ratios.get(name) for verdict in verdicts.values()]
        title, unit, _ = TITLES[name]
        cells = [
            cell for each in found for cell in ((UNKNOWN, "") if each is None else (str(each), each.finding))
        ]
        table.add_row(f"{title} ({unit})", *cells)
    return table


def differing_settings(results: Mapping[str, ReplayResult]) -> list[str]:
    """Name the settings in which the results differ, other than where and when they were measured."""
    names = dict.fromkeys(name for result in results.values() for name in result.setting)
    differing: list[str] = []
    for name in names:
        values = [result.setting.get(name) for result in results.values()]
        if name not in PLACE and any(value != values[0] for value in values):
            shown = ", ".join(f"{label} {value}" for label, value in zip(results, values, strict=True))
            differing.append(f"{name}: {shown}")
    return differing


def _cells(values: Sequence[float | None], factor: float) -> list[str]:
    """Show values, each but the first with its ratio to that."""
    base = values[0]
    cells: list[str] = []
    for position, value in enumerate(values):
        cells.append(UNKNOWN if value is None else format_number(value * factor))
        if position:
            cells.append("" if value is None or not base else f"{value / base:.2f}")
    return cells
