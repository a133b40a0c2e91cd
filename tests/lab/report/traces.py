"""Recorded programs: chats and fan-outs, as a gateway would have recorded them."""

from __future__ import annotations

import random

from autellix_lab.workload.trace import CallTrace, ProgramTrace


def recorded_trace(programs: int, seed: int = 7) -> list[ProgramTrace]:
    """Return programs that arrive two a second, a third of them fan-outs, with the times of their calls."""
    chance = random.Random(seed)
    return [_program(number, chance) for number in range(programs)]


def _program(number: int, chance: random.Random) -> ProgramTrace:
    is_wide = number % 3 == 0
    calls: list[CallTrace] = []
    clock_s = 0.0
    for place in range(chance.randint(3, 9)):
        start_s = clock_s + chance.random()
        latency_s = 1.0 + 4.0 * chance.random()
        is_branch = is_wide and place > 0
        parents = (0,) if is_branch else (place - 1,) if place else ()
        calls.append(
            CallTrace(
                id=place,
                parents=parents,
                thread=f"branch-{place}" if is_branch else "0",
                prefill_tokens=chance.randint(200, 2000),
                decode_tokens=chance.randint(20, 400),
                gap_before_s=start_s - clock_s,
                start_s=start_s,
                latency_s=latency_s,
            )
        )
        if not is_wide or place == 0:
            clock_s = start_s + latency_s
    return ProgramTrace(
        source="tree" if is_wide else "chat",
        program_id=f"program-{number}",
        arrival_s=number / 2,
        calls=tuple(calls),
    )
