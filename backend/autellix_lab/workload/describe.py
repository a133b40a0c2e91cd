"""Statistics of programs, beside those of the paper's workloads table (section 6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from autellix_lab.workload.trace import ProgramTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a set of programs; tokens are means per call."""

    programs: int
    calls: int
    calls_per_program: float
    calls_max: int
    new_prefill_tokens: float
    """Prompt tokens that no earlier call of the program had."""
    prompt_tokens: float
    """Whole prompts, repeated tokens included."""
    decode_tokens: float
    parallel_share: float
    """Share of the programs in which any two calls can run at the same time."""
    width: float
    """Mean over the programs of all decode tokens / decode tokens of the critical path."""
    depth: float
    """Mean number of calls on the longest path, counted in calls."""
    gap_known_share: float
    """Share of the calls with parents whose gap is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One row of the paper's table; None where it has no number."""

    name: str
    calls_per_program: float
    calls_max: int | None
    new_prefill_tokens: float
    decode_tokens: float


PAPER_ROWS: Mapping[str, PaperRow] = MappingProxyType(
    {
        "chat": PaperRow(
            name="ShareGPT", calls_per_program=6.66, calls_max=80, new_prefill_tokens=256, decode_tokens=277
        ),
        "react": PaperRow(
            name="BFCL v3 multi-turn",
            calls_per_program=10.75,
            calls_max=70,
            new_prefill_tokens=735.06,
            decode_tokens=34.14,
        ),
        "tree": PaperRow(
            name="LATS", calls_per_program=159.7, calls_max=None, new_prefill_tokens=467.2, decode_tokens=72.6
        ),
    }
)
"""The paper's row by the generator that follows it."""


def describe(programs: Sequence[ProgramTrace]) -> Statistics:
    """Return the statistics of one program or more.

    Raises:
        ValueError: if there is none.
    """
    if not programs:
        raise ValueError("there are no programs; expected one or more")
    calls = [call for program in programs for call in program.calls]
    gaps = [call.gap_before_s for call in calls if call.parents]
    return Statistics(
        programs=len(programs),
        calls=len(calls),
        calls_per_program=len(calls) / len(programs),
        calls_max=max(len(program.calls) for program in programs),
        new_prefill_tokens=_mean(call.new_tokens for call in calls),
        prompt_tokens=_mean(call.prefill_tokens for call in calls),
        decode_tokens=_mean(call.decode_tokens for call in calls),
        parallel_share=_mean(program.is_parallel for program in programs),
        width=_mean(program_width(program) for program in programs),
        depth=_mean(program_depth(program) for program in programs),
        gap_known_share=_mean(gap is not None for gap in gaps),
    )


def critical_decode_tokens(program: ProgramTrace) -> int:
    """Return the most decode tokens on any path of dependent calls."""
    return int(longest_chain(program, [call.decode_tokens for call in program.calls]))


def program_depth(program: ProgramTrace) -> int:
    """Return the most calls on any path of dependent calls."""
    return int(longest_chain(program, [1] * len(program.calls)))


def program_width(program: ProgramTrace) -> float:
    """Return how many calls run at the same time on average, if each takes as long as its answer is.

    It is one for a single thread, and for a program that generates nothing.
    """
    critical = critical_decode_tokens(program)
    return program.decode_tokens / critical if critical else 1.0


def longest_chain(program: ProgramTrace, weights: Sequence[float]) -> float:
    """Return the largest sum of the calls' weights along a path of dependent calls."""
    ends: list[float] = []
    for call, weight in zip(program.calls, weights, strict=True):
        ends.append(weight + max([ends[parent] for parent in call.parents], default=0))
    return max(ends)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
