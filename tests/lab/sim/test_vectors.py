"""The simulator against the hand-checked cases of Algorithm 1 and Figures 2 and 9, in unit steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.core.shared_vectors import FIG9, entries, load

from autellix_backend.settings.scheduler import scheduler_from_mapping
from autellix_lab.sim.engine import Decision
from autellix_lab.sim.model import UNIT
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SCENARIOS = entries("alg1.json", "scenarios") + entries("fig2.json", "scenarios")
NAMES = {"arrive": "enqueue", "demotion": "demote", "promotion": "promote", "finish": "finish"}


def program(calls: Sequence[dict[str, Any]]) -> ProgramTrace:
    """Make a program whose calls decode a token in each of their steps."""
    return ProgramTrace(
        source="vector",
        program_id="vector",
        calls=tuple(
            CallTrace(
                id=index,
                parents=tuple(call["parents"]),
                thread=str(index),
                prefill_tokens=1,
                decode_tokens=call["steps"],
                gap_before_s=float(call["delay"]),
            )
            for index, call in enumerate(calls)
        ),
    )


def play(
    options: dict[str, Any], programs: Sequence[tuple[float, ProgramTrace]]
) -> tuple[SimResult, list[Decision]]:
    scheduler = scheduler_from_mapping(
        {
            "policy": options["mode"],
            "bounds": options["bounds"],
            "quanta": options.get("quanta"),
            "beta": options["beta"],
            "period_steps": options["N"],
            "preemption": "always",
        }
    )
    model = replace(UNIT, max_num_seqs=options["B"], overprovisions=options.get("overprovision", True))
    log: list[Decision] = []
    settings = SimSettings(model=model, scheduler=scheduler)
    return simulate(programs, settings, log=lambda _, decision: log.append(decision)), log


def slots(log: Sequence[Decision], makespan: float) -> Iterator[list[Any]]:
    """Yield the running calls of each unit in which any runs."""
    running: set[tuple[int, ...]] = set()
    for t in range(int(makespan)):
        for event, call_id, at in log:
            if at == t and event in ("start", "preempt", "finish"):
                (running.add if event == "start" else running.discard)(_key(call_id))
        if running:
            yield [t, *(list(key) for key in sorted(running))]


def _key(call_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in call_id.split("."))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
def test_a_scenario_is_reproduced(scenario: dict[str, Any]) -> None:
    expect = scenario["expect"]
    programs = [(float(item["arrival"]), program(item["calls"])) for item in scenario["programs"]]

    result, log = play(scenario["opt"], programs)

    events = [(at, NAMES[event], list(_key(call_id))) for event, call_id, at in log if event in NAMES]
    assert events == [
        (event["t"], event["ev"], event["call"]) for event in expect["events"] if event["ev"] != "preempt"
    ]
    assert list(slots(log, result.makespan_s)) == expect["gantt"]
    assert result.makespan_s == expect["makespan"]
    assert sum(record.wait_s for record in result.programs) == expect["total_wait"]
    stops = {(at, _key(call_id)) for event, call_id, at in log if event == "preempt"}
    assert stops == {(e["t"], tuple(e["call"])) for e in expect["events"] if e["ev"] == "preempt"}


@pytest.mark.parametrize("column", FIG9)
def test_the_makespans_of_figure_9_are_reproduced(column: str) -> None:
    figure = load("fig9.json")
    policy, bounds = FIG9[column]
    at = figure["columns"].index(column)
    options = {"mode": policy, "bounds": bounds, "beta": "inf", "N": 1, "B": figure["slots"]}

    measured = [
        play(options, [(0.0, figure_9(figure["dag"], row[0]))])[0].makespan_s for row in figure["makespan"]
    ]

    assert [row[at] for row in figure["makespan"]] == measured


def test_the_best_and_the_worst_order_of_figure_9_are_found() -> None:
    figure = load("fig9.json")
    options = {"mode": "fcfs", "bounds": [1], "beta": "inf", "N": 1, "B": figure["slots"]}

    measured = {
        play(options, [(0.0, figure_9(figure["dag"], row[0]))])[0].makespan_s for row in figure["makespan"]
    }

    assert (min(measured), max(measured)) == tuple(sorted(figure["clairvoyant"].values()))


def figure_9(dag: dict[str, Any], issue_order: str) -> ProgramTrace:
    names = ["r", *issue_order.split(","), "c2", "j"]
    edges = [edge.split("-") for edge in dag["edges"]]
    calls = [
        {"steps": dag[name], "parents": [names.index(a) for a, b in edges if b == name], "delay": 0}
        for name in names
    ]
    return program(calls)
