"""Whole runs of small workloads, worked out by hand."""

from __future__ import annotations

import math

from tests.core.unit_step import Outcome, Step, UnitStep, Workload

from autellix_backend.core.config import SchedulerConfig


def chain(*steps: int, arrival: int = 0) -> Workload:
    """Return a program whose calls follow each other."""
    calls = [Step(steps=n, parents=(j - 1,) if j else ()) for j, n in enumerate(steps)]
    return Workload(arrival=arrival, calls=calls)


def run(
    policy: str, slots: int, *workloads: Workload, beta: float = math.inf, period_steps: int = 1
) -> Outcome:
    config = SchedulerConfig(policy=policy, bounds=(2, 4, 8), beta=beta, period_steps=period_steps)
    return UnitStep(config, slots, workloads).run()


def test_a_long_call_is_demoted_level_by_level() -> None:
    outcome = run("atlas", 1, chain(10))

    demotions = [(event["t"], event["q"]) for event in outcome.events if event["ev"] == "demote"]
    assert demotions == [(2, 2), (4, 3), (8, 4)]


def test_a_later_call_starts_at_its_programs_level() -> None:
    outcome = run("atlas", 1, chain(5, 1))

    levels = [(event["service"], event["q"]) for event in outcome.events if event["ev"] == "enqueue"]
    assert levels == [(0, 1), (5, 3)]


def test_a_new_program_takes_the_slot_of_an_older_one() -> None:
    outcome = run("atlas", 1, chain(7), chain(1, arrival=3))

    assert outcome.records[1, 0].wait_s == 0
    assert (outcome.finish_of(0), outcome.finish_of(1)) == (8, 4)
    assert outcome.records[0, 0].preemptions == 1
    assert outcome.records[0, 0].wait_s == 1


def test_first_come_first_served_never_preempts() -> None:
    outcome = run("fcfs", 1, chain(7), chain(1, arrival=3))

    assert (outcome.finish_of(0), outcome.finish_of(1)) == (7, 8)
    assert {event["ev"] for event in outcome.events} == {"enqueue", "finish"}


def test_call_level_queues_ignore_the_program() -> None:
    # The old program's third call (t=4) starts in the first level, as the new program's only one does.
    workloads = (chain(2, 2, 2), chain(1, arrival=4))

    assert run("mlfq", 1, *workloads).records[1, 0].wait_s == 2
    assert run("plas", 1, *workloads).records[1, 0].wait_s == 0


def test_parallel_calls_add_up_under_plas_and_overlap_under_atlas() -> None:
    fork = Workload(calls=[Step(steps=3), Step(steps=3), Step(steps=1, parents=(0, 1))])

    assert run("plas", 2, fork).records[0, 2].inherited_service_s == 6
    assert run("atlas", 2, fork).records[0, 2].inherited_service_s == 3


def test_the_longest_path_outlives_a_shorter_late_thread() -> None:
    fork = Workload(calls=[Step(steps=1), Step(steps=1), Step(steps=5), Step(steps=1, parents=(0,))])

    outcome = run("atlas", 3, fork)

    finishes = [
        (event["call"][1], event["pt_service"]) for event in outcome.events if event["ev"] == "finish"
    ]
    assert finishes == [(0, 1), (1, 1), (3, 2), (2, 5)]


def test_a_starving_call_is_promoted_and_its_waiting_reset() -> None:
    # Two units of service against a stream of short programs: 2 * 2 units of waiting make the ratio.
    shorts = [chain(2, arrival=t) for t in (2, 4, 6, 8)]

    outcome = run("atlas", 1, chain(4), *shorts, beta=2)

    promoted = [event for event in outcome.events if event["ev"] == "promote"]
    assert promoted == [{"t": 6, "ev": "promote", "call": [0, 0], "ratio": 2}]
    record = outcome.records[0, 0]
    assert (record.wait_s, record.table_wait_s, record.promotions) == (6, 2, 1)
    assert record.service_s == 4


def test_without_a_threshold_the_same_call_starves() -> None:
    shorts = [chain(2, arrival=t) for t in (2, 4, 6, 8)]

    outcome = run("atlas", 1, chain(4), *shorts)

    assert outcome.records[0, 0].wait_s == 8


def test_a_period_of_steps_delays_decisions_but_not_refills() -> None:
    outcome = run("atlas", 1, chain(1), chain(5), chain(1, arrival=1), period_steps=4)

    assert outcome.gantt[:5] == [[0, [0, 0]], [1, [1, 0]], [2, [1, 0]], [3, [1, 0]], [4, [2, 0]]]
    assert outcome.finish_of(1) == 7
