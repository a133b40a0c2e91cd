"""Reports of a comparison of policies: a table, a plot, a JSON file."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from autellix_lab.bench.metrics import METRICS, STATISTICS, ProgramOutcome, RunSummary, ratios

TITLES = {
    "token_latency_s": ("program token latency", "ms/token", 1000.0),
    "latency_s": ("program latency", "s", 1.0),
    "token_latency_steps": ("program token latency", "steps/token", 1.0),
    "latency_steps": ("program latency", "steps", 1.0),
    "wait_s": ("waiting per program", "s", 1.0),
    "preemptions": ("preemptions per program", "", 1.0),
    "service_per_token_s": ("engine time per token of a call", "ms", 1000.0),
}
UNITS: dict[str, tuple[str, str]] = {
    "seconds": ("token_latency_s", "latency_s"),
    "engine steps": ("token_latency_steps", "latency_steps"),
}
"""Token latency and latency in each unit."""
LATENCIES = tuple(name for names in UNITS.values() for name in names)
SPEED = "service_per_token_s"
"""The metric that shows the machine's own speed in a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy's run in one round."""

    policy: str
    round_number: int
    summary: RunSummary
    outcomes: Sequence[ProgramOutcome]
    capacity_tokens_per_s: float
    """The engine's speed as it was measured before this round: what rho refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadComparison:
    """All runs at one offered load; the first policy is the baseline."""

    name: str
    rho: float
    policies: Sequence[str]
    runs: list[Run] = field(default_factory=list)

    def of(self, policy: str) -> list[Run]:
        """Return a policy's runs, by round."""
        found = [run for run in self.runs if run.policy == policy]
        return sorted(found, key=lambda run: run.round_number)

    def pooled(self, policy: str) -> dict[str, dict[str, float]]:
        """Return the median over rounds of each statistic."""
        return _medians([run.summary.metrics for run in self.of(policy)])

    def pooled_ratios(self, policy: str) -> dict[str, dict[str, float]]:
        """Return the median over rounds of each ratio to the baseline; none where a baseline is zero.

        Each ratio is of two turns that follow each other, and the median leaves out a round in which the
        machine changed its speed between them.
        """
        return _medians(self.ratios_by_round(policy))

    def ratios_by_round(self, policy: str) -> list[dict[str, dict[str, float]]]:
        """Return each round's ratios to the baseline's run of the same round."""
        pairs = zip(self.of(policy), self.of(self.policies[0]), strict=False)
        return [ratios(run.summary, base.summary) for run, base in pairs]

    def worse_than(
        self, policy: str, limit: float, names: Sequence[str] = LATENCIES
    ) -> list[tuple[str, str, float]]:
        """List the statistics of these latencies whose pooled ratio is above `limit`."""
        pooled = self.pooled_ratios(policy)
        return [
            (name, key, ratio)
            for name in names
            for key, ratio in pooled.get(name, {}).items()
            if ratio > limit
        ]


def comparison_table(load: LoadComparison) -> Table:
    """Return the table of one load: each metric by policy, with ratios to the baseline."""
    base, others = load.policies[0], load.policies[1:]
    rounds = len(load.of(base))
    title = f"{load.name}: offered load rho = {load.rho:g}, median of {rounds} rounds"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("")
    for policy in load.policies:
        table.add_column(policy, justify="right")
    for policy in others:
        table.add_column(f"{policy}/{base}", justify="right")
        table.add_column("by round", justify="right")
    for name in TITLES:
        _add_metric(table, load, name)
    return table


def _add_metric(table: Table, load: LoadComparison, name: str) -> None:
    title, unit, factor = TITLES[name]
    pooled = {policy: load.pooled(policy).get(name) for policy in load.policies}
    if any(values is None for values in pooled.values()):
        return
    for position, key in enumerate(STATISTICS):
        cells = [f"{title} ({unit})" if unit and not position else title if not position else "", key]
        cells += [format_number((values or {})[key] * factor) for values in pooled.values()]
        for policy in load.policies[1:]:
            ratio = load.pooled_ratios(policy).get(name, {}).get(key)
            cells.append("" if ratio is None else f"{ratio:.2f}")
            by_round = [entry.get(name, {}).get(key) for entry in load.ratios_by_round(policy)]
            cells.append(" ".join("-" if value is None else f"{value:.2f}" for value in by_round))
        table.add_row(*cells, end_section=key == STATISTICS[-1])


def verdicts(load: LoadComparison, *, goal: float | None, tolerance: float) -> list[str]:
    """Return sentences about the results of the comparison, including what got worse.

    Args:
        goal: the ratio of mean program token latency that every round should reach; None asks for none.
        tolerance: a latency statistic above one plus this is called worse.
    """
    lines: list[str] = []
    base = load.policies[0]
    for policy in load.policies[1:]:
        for unit, (name, _) in UNITS.items():
            by_round = [entry[name]["mean"] for entry in load.ratios_by_round(policy) if name in entry]
            if not by_round:
                continue
            shown = ", ".join(f"{ratio:.2f}" for ratio in by_round)
            line = f"{load.name}: mean program token latency of {policy} in {unit} is {shown} of {base}'s"
            if goal is not None:
                reached = sum(ratio <= goal for ratio in by_round)
                line += f"; at most {goal:g} in {reached} of {len(by_round)} rounds"
            lines.append(line + ".")
        lines += _what_got_worse(load, policy, tolerance)
    return lines


def _what_got_worse(load: LoadComparison, policy: str, tolerance: float) -> list[str]:
    base = load.policies[0]
    lines: list[str] = []
    for unit, names in UNITS.items():
        worse = load.worse_than(policy, 1 + tolerance, names)
        if not worse:
            lines.append(
                f"{load.name}: no latency of {policy} in {unit} is more than {tolerance:.0%} above {base}'s."
            )
        for name, key, ratio in worse:
            title, shown, _ = TITLES[name]
            lines.append(
                f"{load.name}: {policy} is worse than {base} in {key} {title} ({shown}): {ratio:.2f}."
            )
    speeds = [entry[SPEED]["mean"] for entry in load.ratios_by_round(policy) if SPEED in entry]
    if any(not 1 / (1 + tolerance) <= ratio <= 1 + tolerance for ratio in speeds):
        shown = ", ".join(f"{ratio:.2f}" for ratio in speeds)
        lines.append(
            f"{load.name}: a token took the engine of {policy} {shown} times as long as {base}'s, by round; "
            "fuller batches do that, and a machine that was slower in its turn: more seconds, not more steps."
        )
    return lines


def report_mapping(loads: Sequence[LoadComparison], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return all results as plain JSON values."""
    return {
        "setting": dict(setting),
        "loads": [
            {
                "name": load.name,
                "rho": load.rho,
                "policies": list(load.policies),
                "pooled": {policy: load.pooled(policy) for policy in load.policies},
                "ratios": {policy: load.pooled_ratios(policy) for policy in load.policies[1:]},
                "ratios_by_round": {policy: load.ratios_by_round(policy) for policy in load.policies[1:]},
                "runs": [_run_mapping(run) for run in load.runs],
            }
            for load in loads
        ],
    }


def write_json(path: Path, mapping: Mapping[str, Any]) -> None:
    """Write a report."""
    path.write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")


def check_plotting() -> None:
    """Check that plots can be drawn, before a long run.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def write_plot(path: Path, loads: Sequence[LoadComparison]) -> None:
    """Draw the distributions of token latency and latency, one row per load, all rounds together."""
    # Imported here: it takes a second, and only the end of a benchmark needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(loads)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(loads), 2, squeeze=False)
    for row, load in zip(axes, loads, strict=True):
        for axis, name in zip(row, ("token_latency_s", "latency_s"), strict=True):
            _draw_distribution(axis, load, name)
    figure.savefig(path, dpi=120)


def _draw_distribution(axis: Any, load: LoadComparison, name: str) -> None:
    found = {policy: [item for run in load.of(policy) for item in run.outcomes] for policy in load.policies}
    draw_distribution(axis, found, name)
    axis.set_title(f"{load.name} (rho = {load.rho:g})")


def draw_distribution(axis: Any, found: Mapping[str, Sequence[ProgramOutcome]], name: str) -> None:
    """Draw the distribution of one metric over the programs of each label, where they have it."""
    title, unit, factor = TITLES[name]
    for label, outcomes in found.items():
        known = [value for outcome in outcomes if (value := METRICS[name](outcome)) is not None]
        values = sorted(value * factor for value in known)
        shares = [(index + 1) / len(values) for index in range(len(values))]
        mean = _mean(values) if values else math.nan
        axis.step(values, shares, where="post", label=f"{label}, mean {format_number(mean)}")
    axis.set_xscale("log")
    axis.set_xlabel(f"{title} ({unit})")
    axis.set_ylabel("share of programs")
    axis.grid(visible=True, alpha=0.3)
    axis.legend()


def _run_mapping(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "round": run.round_number,
        "capacity_tokens_per_s": run.capacity_tokens_per_s,
        **dataclasses.asdict(run.summary),
        "outcomes": [dataclasses.asdict(outcome) for outcome in run.outcomes],
    }


def _medians(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median over rounds of every statistic that all of them have."""
    return {
        name: {
            key: median(found[name][key] for found in rounds)
            for key in STATISTICS
            if all(key in found[name] for found in rounds)
        }
        for name in TITLES
        if rounds and all(name in found for found in rounds)
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def format_number(value: float) -> str:
    """Show a number with three digits, or whole from a thousand on."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
