"""Figures 2 and 9: the paper's small examples, in which every step takes one unit of time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.engine import Decision
from autellix_lab.sim.figures.base import Bar, Figure, Gantt, PaperClaim, Table, Verdict
from autellix_lab.sim.model import UNIT
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SLOTS = 2
FIGURE_2_STEPS = ((3, 2, 2, 3), (4, 2, 2, 2), (1, 2), (1, 3))
"""Decoding steps of the calls of the programs A, B, C and D."""
FIGURE_2_PAPER = {"fcfs": 18, "mlfq": 18, "plas": 12}
FIGURE_9_STEPS = {"r": 1, "a": 3, "b": 3, "c1": 4, "c2": 5, "j": 1}
FIGURE_9_PARENTS = {"r": "", "a": "r", "b": "r", "c1": "r", "c2": "c1", "j": "a b c2"}
FIGURE_9_PAPER = (11, 14)
FIGURE_9_POLICIES = ("fcfs", "mlfq", "plas", "atlas")


def figure_2() -> Figure:
    """Play four programs on two slots under three policies."""
    gantts, claims = [], []
    for policy, paper in FIGURE_2_PAPER.items():
        programs = [_chain(steps) for steps in FIGURE_2_STEPS]
        result, log = _play(policy, (2, 4), programs)
        wait = round(sum(record.wait_s for record in result.programs))
        gantts.append(Gantt(f"{policy.upper()}: {wait} units of waiting", _bars(log)))
        verdict = Verdict.REACHED if wait == paper else Verdict.NOT_REACHED
        claims.append(
            PaperClaim(f"total waiting, {policy.upper()}", f"{paper} units", f"{wait} units", verdict)
        )
    return Figure(
        name="2",
        title="Four programs on two slots",
        panels=tuple(gantts),
        claims=tuple(claims),
        notes=("Unit steps; levels at 2 and 4 units; the programs are the figure's.",),
    )


def figure_9() -> Figure:
    """Play one DAG on two slots, its parallel calls issued in every order."""
    rows, spans, runs = [], [], {}
    for order in itertools.permutations(("a", "b", "c1")):
        cells = []
        for policy in FIGURE_9_POLICIES:
            result, log = _play(policy, (2, 4, 8), [_figure_9_program(order)])
            cells.append(f"{result.makespan_s:.0f}")
            if policy == "fcfs":
                spans.append(round(result.makespan_s))
                runs[spans[-1]] = (order, log)
        rows.append((", ".join(order), *cells))
    found = (min(spans), max(spans))
    gantts = [
        Gantt(
            f"FCFS, issued {', '.join(runs[span][0])}: {span} units",
            _bars(runs[span][1], ("r", *runs[span][0], "c2", "j")),
        )
        for span in found
    ]
    return Figure(
        name="9",
        title="One DAG on two slots",
        panels=tuple(gantts),
        claims=(
            PaperClaim(
                "best / worst makespan",
                f"{FIGURE_9_PAPER[0]} / {FIGURE_9_PAPER[1]} units",
                f"{found[0]} / {found[1]} units",
                Verdict.REACHED if found == FIGURE_9_PAPER else Verdict.NOT_REACHED,
            ),
        ),
        tables=(
            Table(
                "Makespan (units) by the order in which the parallel calls are issued",
                ("order", *(policy.upper() for policy in FIGURE_9_POLICIES)),
                tuple(rows),
            ),
        ),
        notes=(
            (
                "Best and worst are those of FCFS over all orders of issue. "
                "ATLAS evens the orders out and does not know the longest path in advance."
            ),
        ),
    )


def _chain(steps: Sequence[int]) -> ProgramTrace:
    parents = [() if index == 0 else (index - 1,) for index in range(len(steps))]
    return _program(steps, parents)


def _figure_9_program(order: Sequence[str]) -> ProgramTrace:
    names = ["r", *order, "c2", "j"]
    steps = [FIGURE_9_STEPS[name] for name in names]
    return _program(
        steps, [tuple(names.index(parent) for parent in FIGURE_9_PARENTS[name].split()) for name in names]
    )


def _program(steps: Sequence[int], parents: Sequence[tuple[int, ...]]) -> ProgramTrace:
    calls = tuple(
        CallTrace(id=index, parents=parents[index], thread=str(index), prefill_tokens=1, decode_tokens=count)
        for index, count in enumerate(steps)
    )
    return ProgramTrace(source="unit_steps", program_id="unit_steps", calls=calls)


def _play(
    policy: str, bounds: tuple[float, ...], programs: Sequence[ProgramTrace]
) -> tuple[SimResult, list[Decision]]:
    log: list[Decision] = []
    scheduler = SchedulerConfig(policy=policy, bounds=bounds, beta=float("inf"), preemption="always")
    settings = SimSettings(model=replace(UNIT, max_num_seqs=SLOTS), scheduler=scheduler)
    result = simulate(
        [(0.0, program) for program in programs], settings, log=lambda _, decision: log.append(decision)
    )
    return result, log


def _bars(log: Sequence[Decision], call_names: Sequence[str] = ()) -> tuple[Bar, ...]:
    """Return the calls in each slot; a freed slot goes to the next call that starts.

    Calls are named by their program and number, unless names are given for those of a single program.
    """
    held: dict[str, tuple[int, float]] = {}
    bars = []
    # At the same time, slots are freed before they are taken.
    moves = [decision for decision in log if decision[0] in ("start", "preempt", "finish")]
    moves.sort(key=lambda decision: (decision[2], decision[0] == "start"))
    for event, call_id, at in moves:
        if event == "start":
            slot = min(set(range(SLOTS)) - {used for used, _ in held.values()})
            held[call_id] = (slot, at)
        elif call_id in held:
            slot, start = held.pop(call_id)
            program, call = (int(part) for part in call_id.split("."))
            label = call_names[call] if call_names else f"{'ABCD'[program]}{call + 1}"
            bars.append(Bar(slot, start, at, call if call_names else program, label))
    return tuple(bars)
