"""The recorded programs of studies, and how they are fitted to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autellix_lab.workload.fit import NO_GAPS, Fit, apply_fit, describe_fit
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


def fit_note(workload: str, fits: Mapping[str, Fit] = FITS) -> str:
    """Return how lengths and gaps were changed."""
    fit = fits.get(workload)
    return "lengths and gaps as recorded" if fit is None else describe_fit(fit)
