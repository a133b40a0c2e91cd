"""The demo's last screen, and the report with all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autellix_lab.bench.report import LoadComparison, comparison_table, format_number
from autellix_lab.demo.comparison import PartComparison
from autellix_lab.demo.parts import DemoOptions

FIGURES = (
    ("program latency, mean (s)", "latency_s", "mean", 1.0),
    ("program latency, p95 (s)", "latency_s", "p95", 1.0),
    ("time per token, mean (ms)", "token_latency_s", "mean", 1000.0),
)
"""Title, metric, statistic and factor of each row; the share of prompts found in the cache follows."""
KNOWN = {"fcfs": " (vLLM's own order)", "boost": " (Autellix's default)"}
MORE = "docs/demo.md"
REPORT_WIDTH = 150
"""Columns of the report's tables."""


def last_screen(
    options: DemoOptions, found: Sequence[PartComparison], report: Mapping[str, Any], duration_s: float
) -> Iterator[RenderableType]:
    """Yield what the demo ends with: what ran, the figures that matter, a sentence, and the files as Text."""
    policies = " and ".join(map(named, options.policies))
    rounds = "1 round" if options.rounds == 1 else f"{options.rounds} rounds"
    yield f"\nThe same agents on real vLLM under {policies}: {rounds}, {duration_s / 60:.1f} minutes."
    for item in found:
        yield f"- {_description(item)}"
    yield ""
    loads = [item.load for item in found]
    if report["lost_calls"]:
        yield lost_verdict(report["lost_calls"], report["errors"])
    else:
        yield summary_table(loads)
        for policy in loads[0].policies[1:]:
            name = f"{policy}: " if len(options.policies) > 2 else ""
            yield f"\n{name}{verdict(mean_ratios(loads, policy))}"
        yield ""
        yield Text(f"Picture: {options.out / 'comparison.png'}")
    yield Text(f"Report:  {options.out / 'report.txt'}")


def write_details(path: Path, found: Sequence[PartComparison], report: Mapping[str, Any]) -> None:
    """Write errors and losses, the figures of each part, and the targets that the project sets itself."""
    with path.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=REPORT_WIDTH)
        console.print(*report["errors"], *report["losses"], sep="\n", end="\n\n")
        for item in found:
            console.print(_description(item))
            if item.bounds:
                console.print(f"bounds of levels (s): {', '.join(f'{bound:g}' for bound in item.bounds)}")
            if not report["lost_calls"]:
                console.print(comparison_table(item.load))
        console.print(*report["targets"], sep="\n")


def named(policy: str) -> str:
    """Return a policy's name with what it is, for newcomers."""
    return policy + KNOWN.get(policy, "")


def summary_table(loads: Sequence[LoadComparison]) -> Table:
    """Return the figures of each load by policy, with the ratios to the baseline by round."""
    base, *others = loads[0].policies
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for policy in (base, *others):
        table.add_column(policy, justify="right")
    for policy in others:
        table.add_column(f"{policy}/{base}", justify="right")
        table.add_column("by round")
    for load in loads:
        table.add_row(f"[bold]{load.name}")
        for title, metric, statistic, factor in FIGURES:
            cells = [
                format_number(factor * load.pooled(policy)[metric][statistic]) for policy in load.policies
            ]
            for policy in others:
                ratios = [entry[metric][statistic] for entry in load.ratios_by_round(policy)]
                cells += [f"{median(ratios):.2f}", " ".join(f"{ratio:.2f}" for ratio in ratios)]
            table.add_row(f"  {title}", *cells)
        shares = [f"{load.cached_share(policy):.0%}" for policy in load.policies]
        table.add_row("  prompts found in the cache", *shares)
    return table


def mean_ratios(loads: Sequence[LoadComparison], policy: str) -> dict[str, list[float]]:
    """Return a policy's mean program latency over the baseline's, by load and round."""
    return {
        load.name: [entry["latency_s"]["mean"] for entry in load.ratios_by_round(policy)] for load in loads
    }


def verdict(ratios: Mapping[str, Sequence[float]]) -> str:
    """Return the sentence for mean latencies over the baseline's, by the name of what is scarce and by round.

    Each figure is a median over rounds. Rounds that were slower are named.
    """
    found = "; ".join(f"with {name}, they {_finished(median(rounds))}" for name, rounds in ratios.items())
    found = found.replace("with", "With", 1).replace("they", "agents", 1)
    count = sum(len(rounds) for rounds in ratios.values())
    slower = [
        f"{name}, round {number}: {ratio:.2f}"
        for name, rounds in ratios.items()
        for number, ratio in enumerate(rounds, start=1)
        if round(ratio, 2) > 1
    ]
    if not slower:
        tail = f"None of {count} rounds was slower."
    else:
        verb = "was" if len(slower) == 1 else "were"
        tail = (
            f"{len(slower)} of {count} rounds {verb} slower ({'; '.join(slower)}): noise or loss, see {MORE}."
        )
    return f"{found}. {tail}"


def lost_verdict(lost: int, errors: Sequence[str]) -> str:
    """Return the sentence for runs that lost calls, whose times cannot be compared."""
    verb = "call was" if lost == 1 else "calls were"
    return f"{lost} {verb} lost, so times are not compared. Errors: {'; '.join(errors[:3])}"


def _finished(ratio: float) -> str:
    """Return a predicate for a latency over the baseline's."""
    rounded = round(ratio, 2)
    if rounded < 1:
        return f"finished in {rounded:.2f} of the time"
    if rounded == 1:
        return "took as long"
    return f"took {rounded:.2f} times as long"


def _description(item: PartComparison) -> str:
    part = item.part
    memory = "" if part.kv_tokens is None else f" ({part.kv_tokens:,} tokens)"
    return f"{part.load.name}{memory}: {len(part.load.programs)} {part.title}, {part.load.calls} calls"
