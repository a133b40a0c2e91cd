"""The programs of a replay and their arrival times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autellix_lab.workload.arrivals import ARRIVAL_KINDS, recorded_arrivals
from autellix_lab.workload.trace import ProgramTrace

RECORDED = "recorded"
REPLAY_ARRIVALS = (*ARRIVAL_KINDS, RECORDED)


def rescaled_arrivals(
    programs: Sequence[ProgramTrace], rate_per_s: float | None, seed: int
) -> tuple[float, ...]:
    """Return the recorded arrival times, from zero on, rescaled to a rate where one is given.

    Raises:
        ValueError: if a program has no arrival time, or the times cannot be rescaled.
    """
    times_s = [program.arrival_s for program in programs if program.arrival_s is not None]
    if len(times_s) < len(programs):
        raise ValueError(
            f"{len(programs) - len(times_s)} of {len(programs)} programs have no arrival_s; "
            "expected --rate R or --arrivals at_once"
        )
    first_s = min(times_s)
    if rate_per_s is None:
        return tuple(time_s - first_s for time_s in times_s)
    # Traces list programs by their ends; each keeps its rank among the arrivals.
    order = sorted(range(len(times_s)), key=lambda index: (times_s[index], index))
    scaled = recorded_arrivals([times_s[index] for index in order], len(order), rate_per_s, seed)
    found = dict(zip(order, scaled, strict=True))
    return tuple(found[index] for index in range(len(times_s)))


def with_unique_ids(programs: Sequence[ProgramTrace]) -> list[ProgramTrace]:
    """Number programs of the same id, because results are found by it."""
    seen: dict[str, int] = {}
    unique: list[ProgramTrace] = []
    for program in programs:
        number = seen[program.program_id] = seen.get(program.program_id, 0) + 1
        name = program.program_id if number == 1 else f"{program.program_id}#{number}"
        unique.append(replace(program, program_id=name))
    return unique
