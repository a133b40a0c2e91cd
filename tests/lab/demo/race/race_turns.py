"""Turns of a race without engines."""

from __future__ import annotations

from autellix_lab.bench.compare import Load, Turn
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.generate import generate_programs

PROGRAMS = generate_programs("chat", 3, seed=1)
ARRIVALS_S = (0.0, 1.0, 2.0)


def turn(policy: str, *, load: str = "saturation", round_number: int = 1) -> Turn:
    """Return a policy's turn at three chats."""
    return Turn(
        policy=policy,
        base_url=f"http://127.0.0.1:1/{policy}",
        load=Load(name=load, rho=2.0, programs=PROGRAMS),
        round_number=round_number,
        part=0,
        programs=PROGRAMS,
        arrivals_s=ARRIVALS_S,
    )


def results(*, s_per_call: float, programs: int = 3) -> list[CallResult]:
    """Return the calls of the first programs, each of which takes a time."""
    return [
        CallResult(
            program=program.program_id,
            call=call.id,
            thread=call.thread,
            submit_s=arrival_s + place * s_per_call,
            finish_s=arrival_s + (place + 1) * s_per_call,
        )
        for program, arrival_s in list(zip(PROGRAMS, ARRIVALS_S, strict=True))[:programs]
        for place, call in enumerate(program.calls)
    ]
