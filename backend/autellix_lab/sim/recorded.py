"""Studies on recorded programs: the programs, the loop over workloads, and its output files."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autellix_lab.workload.fit import NO_GAPS, Fit, GapRule, apply_fit, describe_fit, draw_gaps
from autellix_lab.workload.heavy_tail import HeavyTail
from autellix_lab.workload.trace import ProgramTrace
from autellix_lab.workload.trace_files import read_traces

FAMILIES = {
    "chat": ("sharegpt_en", "sharegpt_zh"),
    "tools": ("bfcl_gt",),
    "tree": ("tot_game24", "lats_hotpot_model"),
    "coding": ("claude_code",),
}
"""Files by family; the fifth, `mixed`, has equal shares of MIXED."""
MIXED = ("chat", "tools", "tree")
HELD_OUT = ("tau_airline", "whowhen", "lats_humaneval", "mooncake_conv", "tot_game24", "sharegpt_zh")
"""Files for which no constant was chosen, or not alone."""
SOURCES = FAMILIES | {name: (name,) for name in HELD_OUT}
FITS = {
    # Prompts average 119,000 tokens; a fiftieth lets one engine hold several programs.
    "coding": Fit(length_scale=0.02, max_context_tokens=8_000, gap_rule=NO_GAPS),
    # A quarter of the preset's memory holds the longest context.
    "mooncake_conv": Fit(max_context_tokens=100_000, gap_rule=NO_GAPS),
}
DRAWN_GAPS = {
    "tools": HeavyTail(mean=2_000, maximum=60_000, sigma=1.0),
    "chat": HeavyTail(mean=20_000, maximum=300_000, sigma=1.0),
}
"""Times (ms) of tools and thinking people by family, our assumption: these sources did not record them."""
FEW_SLOTS = {"coding": 4}
"""Batch size for workloads whose programs are so long that only few can run."""
LEAST_PROGRAMS = 4


@dataclass(frozen=True, slots=True)
class Chapter:
    """The results of one workload: JSON rows and lines of Markdown."""

    rows: Mapping[str, Any]
    lines: Sequence[str]


def load_programs(data: Path, workload: str, fits: Mapping[str, Fit] = FITS) -> list[ProgramTrace]:
    """Read the programs of a family or a held-out source, and fit them to the engine."""
    if workload == "mixed":
        pools = [load_programs(data, name, fits) for name in MIXED]
        share = min(len(pool) for pool in pools)
        return [program for pool in pools for program in pool[:share]]
    programs = [
        program
        for source in SOURCES[workload]
        for program in read_traces(data / "public" / f"{source}.jsonl.gz")
    ]
    fit = fits.get(workload)
    return programs if fit is None else [apply_fit(program, fit) for program in programs]


def fits_with(gaps: GapRule) -> dict[str, Fit]:
    """Return FITS with another rule for gaps; the other workloads have no recorded ones."""
    return {name: replace(fit, gap_rule=gaps) for name, fit in FITS.items()}


def fit_note(workload: str, fits: Mapping[str, Fit] = FITS) -> str:
    """Return how lengths and gaps were changed."""
    fit = fits.get(workload)
    return "lengths and gaps as recorded" if fit is None else describe_fit(fit)


def with_drawn_gaps(workload: str, programs: Iterable[ProgramTrace]) -> list[ProgramTrace]:
    """Return a family's programs with the gaps of DRAWN_GAPS."""
    return [draw_gaps(program, DRAWN_GAPS[workload]) for program in programs]


def study_parser(
    description: str | None, workloads: Iterable[str], *, studies: Sequence[str] = (), workers: int = 1
) -> argparse.ArgumentParser:
    """Return a parser of the arguments of all studies; a study adds its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if studies:
        parser.add_argument("study", choices=studies)
    parser.add_argument("data", type=Path, help="folder whose public/ has the traces")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(workloads))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the programs of a run")
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--out", type=Path, default=Path("study-results"))
    return parser


def study_workloads(
    arguments: argparse.Namespace,
    name: str,
    counts: Mapping[str, int],
    chapter_of: Callable[[str, Sequence[ProgramTrace], int], Chapter],
    *,
    fits: Mapping[str, Fit] = FITS,
) -> None:
    """Study the workloads in turn, and write the results after each.

    Args:
        arguments: of study_parser().
        name: of the files.
        counts: programs in a run by workload, before scaling.
        chapter_of: studies a workload, given its name, its programs and their number in a run.
        fits: how programs are fitted to the engine, by workload.
    """
    rows: dict[str, Any] = {}
    lines: list[str] = []
    for workload in arguments.workloads:
        started_s = time.perf_counter()
        count = max(LEAST_PROGRAMS, round(counts[workload] * arguments.scale))
        chapter = chapter_of(workload, load_programs(arguments.data, workload, fits), count)
        rows[workload] = {"count": count, "fit": fit_note(workload, fits), **chapter.rows}
        lines += chapter.lines
        write_results(arguments.out, name, rows, lines)
        sys.stderr.write(f"{workload}: {time.perf_counter() - started_s:.0f} s\n")


def write_results(folder: Path, name: str, rows: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Write the results so far, as JSON and as a page of tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}-tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
