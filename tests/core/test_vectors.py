"""The machine and its parts against the hand-checked cases of Algorithms 1 and 2, and Figures 2 and 9."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.core.shared_vectors import FIG9, entries, load
from tests.core.unit_step import Outcome, Step, UnitStep, Workload

from autellix_backend.core.balance import EngineLoad
from autellix_backend.core.balance.base import ArrivingCall
from autellix_backend.core.balance.locality import Locality
from autellix_backend.core.batch import form_batch
from autellix_backend.core.policies import make_policy
from autellix_backend.core.queues.levels import LevelQueue
from autellix_backend.core.starvation import is_starving
from autellix_backend.settings.scheduler import scheduler_from_mapping

SCENARIOS = entries("alg1.json", "scenarios") + entries("fig2.json", "scenarios")


def replay(scenario: dict[str, Any]) -> Outcome:
    options = scenario["opt"]
    config = scheduler_from_mapping(
        {
            "policy": options["mode"],
            "bounds": options["bounds"],
            "quanta": options["quanta"],
            "beta": options["beta"],
            "period_steps": options["N"],
        }
    )
    workloads = [
        Workload(arrival=program["arrival"], calls=[Step(**call) for call in program["calls"]])
        for program in scenario["programs"]
    ]
    return UnitStep(config, options["B"], workloads).run()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
def test_every_event_of_a_scenario_is_reproduced(scenario: dict[str, Any]) -> None:
    outcome = replay(scenario)

    assert scenario["expect"]["events"] == outcome.events
    assert scenario["expect"]["gantt"] == outcome.gantt


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
def test_the_totals_of_a_scenario_are_reproduced(scenario: dict[str, Any]) -> None:
    expect = scenario["expect"]

    outcome = replay(scenario)

    assert expect["finish"] == [outcome.finish_of(i) for i in range(len(scenario["programs"]))]
    assert expect["makespan"] == outcome.makespan
    assert expect["total_wait"] == outcome.total_wait
    assert expect["call_wait"] == {f"{i}.{j}": record.wait_s for (i, j), record in outcome.records.items()}


@pytest.mark.parametrize("column", FIG9)
def test_the_makespans_of_figure_9_are_reproduced(column: str) -> None:
    figure = load("fig9.json")
    policy, bounds = FIG9[column]
    config = scheduler_from_mapping({"policy": policy, "bounds": bounds, "beta": "inf"})
    at = figure["columns"].index(column)

    measured = [
        UnitStep(config, figure["slots"], [_figure_9(figure["dag"], row[0])]).run().makespan
        for row in figure["makespan"]
    ]

    assert [row[at] for row in figure["makespan"]] == measured


def _figure_9(dag: dict[str, Any], issue_order: str) -> Workload:
    names = ["r", *issue_order.split(","), "c2", "j"]
    edges = [edge.split("-") for edge in dag["edges"]]
    return Workload(
        calls=[
            Step(steps=dag[name], parents=tuple(names.index(a) for a, b in edges if b == name))
            for name in names
        ]
    )


def test_the_level_of_a_service_is_reproduced() -> None:
    section = load("alg1_functions.json")["queue_index"]
    levels = LevelQueue(section["bounds"])

    for case in section["cases"]:
        assert case["q_idx"] == levels.level_of(case["service"])


def test_the_update_of_the_table_is_reproduced() -> None:
    for section in load("alg1_functions.json")["update_process_table"]:
        policy = make_policy(section["mode"])
        service_s = 0.0
        for case in section["sequence"]:
            service_s = policy.complete(service_s, case["c_service"], case["c_model_time"])
            assert case["pt_service_after"] == service_s


def test_the_starvation_test_is_reproduced() -> None:
    for case in load("alg1_functions.json")["starvation"]:
        assert case["promote"] is is_starving(case["Wp"] + case["Wc"], case["Tp"] + case["Tc"], case["beta"])


def test_batch_formation_is_reproduced() -> None:
    for case in load("alg1_functions.json")["batch_formation"]:
        items = [(name, cost) for queue in case["queues"] for name, cost in queue]

        batch = form_batch(items, case["B"], capacity=case["capacity"], cost=lambda item: item[1])

        assert case["batch"] == [name for name, _ in batch]


@pytest.mark.parametrize("sequence", entries("alg2.json", "sequences"), ids=lambda sequence: sequence["name"])
def test_the_placements_of_algorithm_2_are_reproduced(sequence: dict[str, Any]) -> None:
    balancer = Locality(load("alg2.json")["threshold"])

    for call in sequence["calls"]:
        loads = [
            EngineLoad(
                name=str(engine),
                running=load,
                waiting=0,
                slots=16,
                prefill_s_per_token=0.0,
                decode_s_per_token=0.0,
            )
            for engine, load in enumerate(call["loads"])
        ]
        assert str(call["engine"]) == balancer.assign(ArrivingCall(call["pid"], call["prompt_tokens"]), loads)
        assert {pid: str(engine) for pid, engine in call["pinned_after"].items()} == balancer._pins


def test_infinite_thresholds_are_read() -> None:
    assert scheduler_from_mapping({"beta": "inf"}).beta == math.inf
