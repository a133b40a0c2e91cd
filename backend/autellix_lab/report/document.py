"""The data of a report: programs with their calls, and runs to compare, in plain JSON values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autellix_lab.bench.result_file import ReplayResult
from autellix_lab.report.recorded import show_programs
from autellix_lab.sim.results import SimResult
from autellix_lab.workload.trace import ProgramTrace

KIND = "autellix-report"
VERSION = 1


def report_document(
    title: str, programs: Sequence[ProgramTrace], runs: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the data of a report.

    Args:
        title: A line that names it.
        programs: Recorded programs, whose calls are shown as far as their times are known.
        runs: What `replayed_run`, `simulated_run` and `recorded_run` return; the first is what the others
            are compared to.
        notes: Caveats for a reader of the comparison.
    """
    shown = show_programs(programs)
    left_out = [f"{shown.left_out} programs without times, or too many to show, are left out."]
    return {
        "kind": KIND,
        "version": VERSION,
        "title": title,
        "notes": [*notes, *(left_out if shown.left_out and shown.rows else [])],
        "programs": shown.rows,
        "timelines": shown.timelines,
        "runs": list(runs),
    }


def replayed_run(label: str, result: ReplayResult) -> dict[str, Any]:
    """Return a replay's outcomes as a run."""
    return {"label": label, "outcomes": [dataclasses.asdict(outcome) for outcome in result.outcomes]}


def recorded_run(label: str, programs: Sequence[ProgramTrace]) -> dict[str, Any] | None:
    """Return programs as they went when they were recorded; None without their times."""
    rows = show_programs(programs).rows
    outcomes = [
        _outcome(row["program_id"], row["name"], row["output_tokens"], row["duration_s"]) for row in rows
    ]
    return {"label": label, "outcomes": outcomes} if outcomes else None


def simulated_run(label: str, result: SimResult) -> dict[str, Any]:
    """Return a simulation's outcomes as a run."""
    return {
        "label": label,
        "outcomes": [
            {
                **_outcome(record.program_id, record.source, record.output_tokens, record.latency_s),
                "token_latency_s": record.token_latency_s,
                "wait_s": record.wait_s,
                "preemptions": record.preemptions,
            }
            for record in result.programs
        ],
    }


def _outcome(program_id: str, name: str | None, output_tokens: int, latency_s: float) -> dict[str, Any]:
    return {"program": program_id, "source": name, "output_tokens": output_tokens, "latency_s": latency_s}
