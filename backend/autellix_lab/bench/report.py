"""Reports of a comparison of policies: a table, a plot, a JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from autellix_lab.bench.metrics import STATISTICS, ProgramOutcome, RunSummary, quotients

TITLES = {
    "token_latency_s": ("program token latency", "ms/token", 1000.0),
    "latency_s": ("program latency", "s", 1.0),
    "token_latency_steps": ("program token latency", "steps/token", 1.0),
    "latency_steps": ("program latency", "steps", 1.0),
    "wait_s": ("waiting per program", "s", 1.0),
    "preemptions": ("preemptions per program", "", 1.0),
    "service_per_token_s": ("engine time per token of a call", "ms", 1000.0),
}
COMPARED = ("token_latency_steps", "latency_steps")
"""What losses are found in."""
Goals = Mapping[tuple[str, str], float]
"""Largest ratio to the baseline, by metric and statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy's run in one round."""

    policy: str
    round_number: int
    summary: RunSummary
    outcomes: Sequence[ProgramOutcome]


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
        """Return the quotient of each pooled statistic and the baseline's; none where that is zero."""
        return quotients(self.pooled(policy), self.pooled(self.policies[0]))

    def shown(self, policy: str, metric: str, statistic: str) -> float | None:
        """Return a pooled statistic as it is shown, in its metric's unit and rounded; None without one."""
        value = self.pooled(policy).get(metric, {}).get(statistic)
        return None if value is None else float(format_number(value * TITLES[metric][2]))

    def shown_ratio(self, policy: str, metric: str, statistic: str) -> float | None:
        """Return the quotient of what is shown of a policy and of the baseline; None where that is zero."""
        value, base = (self.shown(name, metric, statistic) for name in (policy, self.policies[0]))
        return value / base if value is not None and base else None

    def ratios_by_round(self, policy: str) -> list[dict[str, dict[str, float]]]:
        """Return each round's ratios to the baseline's run of the same round."""
        pairs = zip(self.of(policy), self.of(self.policies[0]), strict=False)
        return [quotients(run.summary.metrics, base.summary.metrics) for run, base in pairs]

    def cached_share(self, policy: str) -> float:
        """Return the share of all prompt tokens that the policy's runs found in the prefix cache."""
        totals = [run.summary.totals for run in self.of(policy)]
        prompt_tokens = sum(total["prompt_tokens"] for total in totals)
        return sum(total["cached_tokens"] for total in totals) / prompt_tokens if prompt_tokens else 0.0

    def worse_than(self, policy: str, limit: float) -> list[tuple[str, str, float]]:
        """List the latencies in steps whose pooled ratio is above `limit`, the worst first."""
        pooled = self.pooled_ratios(policy)
        found = [
            (name, key, ratio)
            for name in COMPARED
            for key, ratio in pooled.get(name, {}).items()
            if ratio > limit
        ]
        return sorted(found, key=lambda item: -item[2])


def comparison_table(load: LoadComparison) -> Table:
    """Return the table of one load: each metric by policy, with ratios to the baseline."""
    base, others = load.policies[0], load.policies[1:]
    rounds = len(load.of(base))
    title = f"{load.name}: offered load rho = {load.rho:g}, medians of {rounds} rounds and their quotients"
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
    hits = [f"{load.cached_share(policy):.0%}" for policy in load.policies]
    table.add_row("prompt tokens found in the KV cache", "", *hits)
    return table


def _add_metric(table: Table, load: LoadComparison, name: str) -> None:
    title, unit, _ = TITLES[name]
    if any(name not in load.pooled(policy) for policy in load.policies):
        return
    for position, key in enumerate(STATISTICS):
        cells = [f"{title} ({unit})" if unit and not position else title if not position else "", key]
        cells += [format_number(load.shown(policy, name, key) or 0.0) for policy in load.policies]
        for policy in load.policies[1:]:
            ratio = load.shown_ratio(policy, name, key)
            cells.append("" if ratio is None else f"{ratio:.2f}")
            by_round = [entry.get(name, {}).get(key) for entry in load.ratios_by_round(policy)]
            cells.append(" ".join("-" if value is None else f"{value:.2f}" for value in by_round))
        table.add_row(*cells, end_section=key == STATISTICS[-1])


def losses(load: LoadComparison, *, tolerance: float) -> list[str]:
    """Return a sentence about every latency that exceeds the baseline's by more than the tolerance."""
    base = load.policies[0]
    lines: list[str] = []
    for policy in load.policies[1:]:
        by_metric: dict[str, list[str]] = {}
        for name, key, ratio in load.worse_than(policy, 1 + tolerance):
            shown = f"{key} {ratio:.2f} (by round {_by_round(load, policy, name, key)})"
            by_metric.setdefault(name, []).append(shown)
        for name, found in by_metric.items():
            title, unit, _ = TITLES[name]
            lines.append(
                f"{load.name}: {policy} is slower than {base} in {title} ({unit}): {'; '.join(found)}"
            )
    return lines


def targets(load: LoadComparison, goals: Goals) -> list[str]:
    """Return a sentence about each goal: the ratio to the baseline that every round should reach."""
    lines: list[str] = []
    for policy in load.policies[1:]:
        for (name, key), goal in goals.items():
            found = [entry[name][key] for entry in load.ratios_by_round(policy) if key in entry.get(name, {})]
            title, unit, _ = TITLES[name]
            reached = sum(ratio <= goal for ratio in found)
            lines.append(
                f"{load.name}: {policy}, {key} {title} ({unit}): {_by_round(load, policy, name, key)} of "
                f"{load.policies[0]}; target at most {goal:g} in every round: {reached} of {len(found)}"
            )
    return lines


def _by_round(load: LoadComparison, policy: str, name: str, key: str) -> str:
    ratios_found = [entry.get(name, {}).get(key) for entry in load.ratios_by_round(policy)]
    return ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios_found)


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
                "cached_share": {policy: load.cached_share(policy) for policy in load.policies},
                "ratios_by_round": {policy: load.ratios_by_round(policy) for policy in load.policies[1:]},
                "runs": [_run_mapping(run) for run in load.runs],
            }
            for load in loads
        ],
    }


def write_json(path: Path, mapping: Mapping[str, Any]) -> None:
    """Write a report."""
    path.write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")


def _run_mapping(run: Run) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "round": run.round_number,
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


def format_number(value: float) -> str:
    """Show a number with three digits, or whole from a thousand on."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
