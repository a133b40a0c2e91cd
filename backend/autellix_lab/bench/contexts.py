"""How much KV memory the programs that are alive at once ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from autellix_lab.bench.results import CallResult
from autellix_lab.workload.prefixes import SystemPrefix, system_prefix
from autellix_lab.workload.trace import ProgramTrace

_Span = tuple[float, float]


def mean_context_tokens(
    programs: Sequence[ProgramTrace], arrivals_s: Sequence[float], results: Sequence[CallResult]
) -> float:
    """Return the contexts of the programs that are alive at once, a mean over the time with any alive.

    A program is alive from its arrival to its last answer. Its context is that of the call that it sent last,
    without its system prefix. A prefix counts once for all programs alive that share it.
    """
    by_program: dict[str, list[CallResult]] = {}
    for result in results:
        if result.error is None:
            by_program.setdefault(result.program, []).append(result)
    area, spans, prefixes = 0.0, [], dict[str, tuple[SystemPrefix, list[_Span]]]()
    for program, arrival_s in zip(programs, arrivals_s, strict=True):
        calls = sorted(by_program.get(program.program_id, ()), key=lambda result: result.submit_s)
        if not calls:
            continue
        prefix = system_prefix(program)
        end_s = max(result.finish_s for result in calls)
        # The first call's context is asked for from the arrival on.
        times_s = [arrival_s, *(result.submit_s for result in calls[1:]), end_s]
        for result, (start_s, next_s) in zip(calls, pairwise(times_s), strict=True):
            own = program.calls[result.call].context_tokens
            own -= prefix.tokens[result.call] if prefix is not None else 0
            area += own * (next_s - start_s)
        spans.append((arrival_s, end_s))
        if prefix is not None:
            prefixes.setdefault(prefix.key, (prefix, []))[1].append((arrival_s, end_s))
    area += sum(prefix.length * _union_s(alive) for prefix, alive in prefixes.values())
    return area / duration_s if (duration_s := _union_s(spans)) else 0.0


def _union_s(spans: Iterable[_Span]) -> float:
    """Return the time that any of the spans covers."""
    covered_s, last_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(start_s, last_s))
        last_s = max(last_s, end_s)
    return covered_s
