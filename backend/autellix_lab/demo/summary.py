"""The demo's last screen, and the report with all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autellix_lab.bench.report import LoadComparison, comparison_table, format_number
from autellix_lab.bench.step_clock import PREFILLED_TOKENS
from autellix_lab.demo.comparison import PartComparison
from autellix_lab.demo.parts import PLAIN, DemoOptions

FIGURES = (
    ("time per token, mean (steps)", "token_latency_steps", "mean"),
    ("program latency, mean (steps)", "latency_steps", "mean"),
    ("program latency, p95 (steps)", "latency_steps", "p95"),
    ("program latency, mean (s)", "latency_s", "mean"),
)
"""Title, metric and statistic of each row; the time of a step and the share found in the cache follow."""
SAME_SPEED = 0.1
"""Engines whose steps took as long within this share had the same machine."""
MOST_ERRORS = 20
"""More standard errors are not told apart."""
KNOWN = {PLAIN: " (vLLM without Autellix)", "boost": " (Autellix's default)"}
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
        medians = f"Medians of {rounds} and their ratios. " if options.rounds > 1 else ""
        yield f"{medians}{PREFILLED_TOKENS} prefilled tokens count as one more step.\n"
        yield summary_table(loads)
        for policy in loads[0].policies[1:]:
            name = f"{policy}: " if len(options.policies) > 2 else ""
            yield f"\n{name}{verdict(loads, policy)}"
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
    """Return the figures of each load by policy, with the ratios to the baseline, in all and by round."""
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
        for title, metric, statistic in FIGURES:
            figures = [load.shown(policy, metric, statistic) or 0.0 for policy in load.policies]
            by_round = [
                [entry[metric][statistic] for entry in load.ratios_by_round(policy)] for policy in others
            ]
            table.add_row(f"  {title}", *_cells(figures, by_round))
        figures = [step_ms(load, policy) for policy in load.policies]
        by_round = [step_ratios(load, policy) for policy in others]
        table.add_row("  time of a step (ms)", *_cells(figures, by_round))
        shares = [f"{load.cached_share(policy):.0%}" for policy in load.policies]
        table.add_row("  prompts found in the cache", *shares)
    return table


def _cells(figures: Sequence[float], by_round: Sequence[Sequence[float]]) -> list[str]:
    cells = [format_number(figure) for figure in figures]
    for figure, ratios in zip(figures[1:], by_round, strict=True):
        cells += [f"{figure / figures[0]:.2f}", " ".join(f"{ratio:.2f}" for ratio in ratios)]
    return cells


def step_ms(load: LoadComparison, policy: str) -> float:
    """Return how long a step took (ms): what is shown of the mean latency in seconds over that in steps."""
    seconds, steps = (load.shown(policy, name, "mean") or 0.0 for name in ("latency_s", "latency_steps"))
    return float(format_number(1000.0 * seconds / steps))


def step_ratios(load: LoadComparison, policy: str) -> list[float]:
    """Return how long a step took over the baseline's, by round."""
    return [
        entry["latency_s"]["mean"] / entry["latency_steps"]["mean"] for entry in load.ratios_by_round(policy)
    ]


def verdict(loads: Sequence[LoadComparison], policy: str) -> str:
    """Return the sentences on a policy: its ratios, the rounds in which it was slower, and the machine.

    Ratios are those of the table. The mean latency in steps decides whether a round was slower.
    """
    found = "; ".join(f"with {load.name}, {_gain(load, policy)}" for load in loads)
    sentences = [found[:1].upper() + found[1:] + "."]
    rounds = [
        (f"{load.name}, round {number}", ratio)
        for load in loads
        for number, ratio in enumerate(_by_round(load, policy, "latency_steps"), start=1)
    ]
    slower = [f"{name}: {ratio:.2f}" for name, ratio in rounds if round(ratio, 2) > 1]
    if slower:
        verb = "was" if len(slower) == 1 else "were"
        sentences.append(
            f"{len(slower)} of {len(rounds)} rounds {verb} slower ({'; '.join(slower)}), see {MORE}."
        )
    else:
        sentences.append(f"None of {len(rounds)} rounds was slower.")
    return " ".join([*sentences, *(_machine(load, policy) for load in loads)]).strip()


def lost_verdict(lost: int, errors: Sequence[str]) -> str:
    """Return the sentence for runs that lost calls, whose times cannot be compared."""
    verb = "call was" if lost == 1 else "calls were"
    return f"{lost} {verb} lost, so times are not compared. Errors: {'; '.join(errors[:3])}"


def _gain(load: LoadComparison, policy: str) -> str:
    token, agent = (
        _steps(load.shown_ratio(policy, metric, "mean") or 0.0) + _errors(_by_round(load, policy, metric))
        for metric in ("token_latency_steps", "latency_steps")
    )
    return f"a token took {token}, an agent {agent}"


def _by_round(load: LoadComparison, policy: str, metric: str) -> list[float]:
    return [entry[metric]["mean"] for entry in load.ratios_by_round(policy)]


def _steps(ratio: float) -> str:
    rounded = round(ratio, 2)
    if rounded < 1:
        return f"{rounded:.2f} of the engine's steps"
    return "as many steps" if rounded == 1 else f"{rounded:.2f} times as many steps"


def _errors(ratios: Sequence[float]) -> str:
    """Return how far the mean of the rounds' ratios is from 1, in its standard errors."""
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    if not error:
        return ""
    count = (1 - fmean(ratios)) / error
    # A few rounds know their own spread too roughly for more.
    size = f"{abs(count):.0f}" if abs(count) <= MOST_ERRORS else f"over {MOST_ERRORS}"
    return f" ({size} standard errors {'below' if count > 0 else 'above'} 1)"


def _machine(load: LoadComparison, policy: str) -> str:
    """Return sentences on the turns in which steps took longer; empty if there were none."""
    base, turns = load.policies[0], []
    ratios = step_ratios(load, policy)
    for number, ratio in enumerate(ratios, start=1):
        slower, factor = (policy, ratio) if ratio > 1 else (base, 1 / ratio)
        if factor > 1 + SAME_SPEED:
            turns.append(f"{factor:.2f} times as long under {slower} in round {number}")
    if not turns:
        return ""
    found = f"With {load.name}, a step took {', '.join(turns)}."
    if len(ratios) > 1 and (min(ratios) > 1 + SAME_SPEED or max(ratios) * (1 + SAME_SPEED) < 1):
        # Other work on the machine would not meet the same policy each time.
        favoured = policy if min(ratios) > 1 else base
        return (
            f"{found} That is so in every round, so other work is not the reason: steps favour {favoured}. "
            "Compare seconds there, too."
        )
    return f"{found} The machine was slower there: compare steps, not seconds."


def _description(item: PartComparison) -> str:
    part = item.part
    memory = "" if part.kv_tokens is None else f" ({part.kv_tokens:,} tokens)"
    return f"{part.load.name}{memory}: {len(part.load.programs)} {part.title}, {part.load.calls} calls"
