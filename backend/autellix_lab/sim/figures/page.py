"""Writes figures as a Markdown page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from autellix_backend.core.config import CALL_LEVELS
from autellix_lab.sim.figures.base import Figure
from autellix_lab.sim.figures.study import WORKLOADS, Study
from autellix_lab.sim.markdown import markdown_table


def page(figures: Sequence[Figure], study: Study, source: str, pictures: Mapping[str, str]) -> str:
    """Return the page: a table of all claims, then each figure with its picture, tables and notes.

    Args:
        figures: in the order of the page.
        study: their setting.
        source: description of the programs.
        pictures: path of each figure's picture, by the figure's name.
    """
    parts = ["# The paper's figures, simulated", *_preface(study, source)]
    parts += ["## Claims", _claims(figures)]
    for figure in figures:
        heading = f"Figure {figure.name}: {figure.title}"
        parts.append(f"## {heading}")
        if figure.name in pictures:
            parts.append(f"![{heading}]({pictures[figure.name]})")
        for table in figure.tables:
            parts += [f"{table.title}:", "\n".join(markdown_table(table.header, table.rows))]
        parts += figure.notes
    return "\n\n".join(parts) + "\n"


def _preface(study: Study, source: str) -> list[str]:
    model = study.model
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed, so without intervals"
    counts = ", ".join(f"{study.count(workload)} {workload}" for workload in WORKLOADS)
    quick = ["**A quick run: it shows that all parts work, and measures nothing.**"] if study.is_quick else []
    return [
        (
            "Written by `autellix sim paper`. Nothing ran on a GPU: scheduler, policies and balancers are "
            "the live ones, the engine is simulated."
        ),
        *quick,
        (
            f"- Engine: {model.name}, {model.max_num_seqs} slots, {model.kv_blocks} KV blocks of "
            f"{model.block_tokens} tokens; {model.step_s * 1e3:.2f} ms a step, {model.decode_s * 1e3:.3f} ms "
            f"for each decoded token, {model.prefill_s * 1e3:.4f} ms for each prefill token "
            f"({model.source}).\n"
            f"- Programs: {source}; {counts} in a run on one engine; {seeds}; intervals are 95 % (Student).\n"
            f"- Scheduler: {CALL_LEVELS} levels, the first bound is half the service of a mean call, "
            "each next is twice the last; the same for all policies of a comparison. "
            "Autellix is PLAS for chat and react, ATLAS for tree and mixed, as in the paper.\n"
            "- Latency is the paper's: a program's response time over its tokens; for parallel programs, "
            "that of the longest chain of calls over all tokens."
        ),
    ]


def _claims(figures: Sequence[Figure]) -> str:
    rows = [(each.name, *dataclasses.astuple(claim)) for each in figures for claim in each.claims]
    return "\n".join(markdown_table(("figure", "claim", "paper", "ours", "verdict"), rows))
