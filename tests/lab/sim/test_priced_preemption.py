"""Priced preemption starves no call."""

# Hypothesis is skipped by the type checker, and its decorators with it.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import PREEMPTION_KINDS, SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import Resume, ResumeKind, preemption_pays
from autellix_lab.sim.engine import Decision
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SLOTS = 4
BLOCKS = 40
ENGINE = EngineModel(
    max_num_seqs=SLOTS, token_budget=256, step_s=0.01, decode_s=0.001, block_tokens=16, kv_blocks=BLOCKS
)
BOUNDS = (0.2, 0.4, 0.8, 1.6)
POLICIES = ("mlfq", "plas", "atlas", "round_robin")

CALLS = st.tuples(st.integers(min_value=1, max_value=300), st.integers(min_value=1, max_value=120))
PROGRAMS = st.lists(
    st.tuples(st.integers(min_value=0, max_value=40), st.lists(CALLS, min_size=1, max_size=3)),
    min_size=2,
    max_size=10,
)


def program_of(number: int, calls: list[tuple[int, int]]) -> ProgramTrace:
    """One call after the other, of so many tokens of prompt and answer, sharing nothing."""
    return ProgramTrace(
        source="s",
        program_id=str(number),
        calls=tuple(
            CallTrace(
                id=index,
                parents=(index - 1,) if index else (),
                thread="0",
                prefill_tokens=prompt,
                decode_tokens=answer,
            )
            for index, (prompt, answer) in enumerate(calls)
        ),
    )


def play(
    arrivals: list[tuple[float, ProgramTrace]], *, prefill_s: float, **scheduler: object
) -> list[Decision]:
    """Play programs on an engine whose KV blocks hold a few of their contexts."""
    log: list[Decision] = []
    config = SchedulerConfig(bounds=BOUNDS, **scheduler)  # type: ignore[arg-type]
    played = SimSettings(model=replace(ENGINE, prefill_s=prefill_s), scheduler=config)
    simulate(arrivals, played, log=lambda _, decision: log.append(decision))
    return log


@given(
    programs=PROGRAMS,
    policy=st.sampled_from(POLICIES),
    preemption=st.sampled_from(PREEMPTION_KINDS),
    prefill_s=st.sampled_from((0.0, 0.0005, 0.02, 1.0)),
    beta=st.sampled_from((1.0, 8.0, math.inf)),
    demotes=st.booleans(),
)
@settings(max_examples=60)
def test_every_call_is_admitted_and_finishes(
    programs: list[tuple[int, list[tuple[int, int]]]],
    policy: str,
    preemption: str,
    prefill_s: float,
    beta: float,
    demotes: bool,
) -> None:
    """At any price of prefill and with little memory: no standstill, and no call is left waiting."""
    arrivals = [(tenths / 10, program_of(number, calls)) for number, (tenths, calls) in enumerate(programs)]
    options = {"policy": policy, "preemption": preemption, "beta": beta, "demotes": demotes}

    log = play(sorted(arrivals, key=lambda arrival: arrival[0]), prefill_s=prefill_s, **options)

    finished = [call for event, call, _ in log if event == "finish"]
    assert len(finished) == len(set(finished)) == sum(len(calls) for _, calls in programs)


@given(
    bounds=st.sampled_from(((0.1, 0.4, 1.6), (1.0,), (0.5, 1.0, 2.0, 4.0))),
    step_s=st.floats(min_value=0.01, max_value=0.5),
    read_s=st.floats(min_value=0.001, max_value=5.0),
    running=st.integers(min_value=1, max_value=64),
    demotes=st.booleans(),
)
@settings(max_examples=60)
def test_a_running_call_can_be_preempted_after_a_bounded_time(
    bounds: tuple[float, ...], step_s: float, read_s: float, running: int, demotes: bool
) -> None:
    """Once it has run through its levels and for as long as its resume costs."""
    machine = Machine(SchedulerConfig(policy="plas", bounds=bounds, demotes=demotes))
    call = machine.arrive(Arrival("c", "p"), 0.0)
    machine.start("c", 0.0)
    resume = Resume(kind=ResumeKind.RECOMPUTE, seconds=read_s, prefill_s=read_s)
    bound_s = bounds[-1] + running * read_s + (len(bounds) + 2) * step_s
    now = 0.0
    while not preemption_pays(call, now, resume, running=running):
        now += step_s
        assert now <= bound_s
        machine.charge("c", step_s, now)
        machine.tick(now)


@given(
    prompt=st.integers(min_value=200, max_value=270),
    answer=st.integers(min_value=100, max_value=350),
    prefill_s=st.sampled_from((0.0005, 0.005, 0.05)),
)
@settings(max_examples=30)
def test_a_refused_call_is_admitted_next(prompt: int, answer: int, prefill_s: float) -> None:
    """The blocks hold two of five equal calls: the third waits for no more than one of them to leave.

    By then it stands before them, whose programs have had their service. Whether they are interrupted for it
    is a matter of price; the fourth and the fifth are behind it, and so is who was interrupted.
    """
    arrivals = [(0.0, program_of(number, [(prompt, answer)])) for number in range(5)]

    log = play(arrivals, prefill_s=prefill_s, policy="plas", preemption="priced", beta=math.inf)

    before = log[
        : next(index for index, (event, call, _) in enumerate(log) if (event, call) == ("start", "2.0"))
    ]
    assert [call for event, call, _ in before if event == "start"] in (["0.0", "1.0"], ["0.0"])
    assert [event for event, _, _ in before].count("finish") <= 1
