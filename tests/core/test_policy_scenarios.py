"""Each policy in scenarios small enough to check by hand."""

from __future__ import annotations

import math

from tests.core.unit_step import Outcome, Step, UnitStep, Workload

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import ChangeReason
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine

BOUNDS = (2.0, 4.0, 8.0)


def play(policy: str, slots: int, *workloads: Workload, **settings: object) -> Outcome:
    config = SchedulerConfig(policy=policy, **{"beta": math.inf, "bounds": (1.0, 2.0, 4.0), **settings})  # type: ignore[arg-type]
    return UnitStep(config, slots, workloads).run()


def one(steps: int, arrival: int = 0) -> Workload:
    return Workload(arrival=arrival, calls=[Step(steps=steps)])


def chain(*steps: int, arrival: int = 0) -> Workload:
    calls = [Step(steps=n, parents=(j - 1,) if j else ()) for j, n in enumerate(steps)]
    return Workload(arrival=arrival, calls=calls)


def finishes(outcome: Outcome, programs: int) -> list[float]:
    return [outcome.finish_of(index) for index in range(programs)]


def test_a_long_call_is_demoted_level_by_level() -> None:
    outcome = play("atlas", 1, chain(10), bounds=BOUNDS)

    demotions = [(event["t"], event["q"]) for event in outcome.events if event["ev"] == "demote"]
    assert demotions == [(2, 2), (4, 3), (8, 4)]


def test_call_level_queues_ignore_the_program() -> None:
    # The old program's third call (t=4) starts in the first level, as the new program's only one does.
    workloads = (chain(2, 2, 2), chain(1, arrival=4))

    assert play("mlfq", 1, *workloads, bounds=BOUNDS).records[1, 0].wait_s == 2
    assert play("plas", 1, *workloads, bounds=BOUNDS).records[1, 0].wait_s == 0


def test_parallel_calls_add_up_under_plas_and_overlap_under_atlas() -> None:
    fork = Workload(calls=[Step(steps=3), Step(steps=3), Step(steps=1, parents=(0, 1))])

    assert play("plas", 2, fork, bounds=BOUNDS).records[0, 2].inherited_service_s == 6
    assert play("atlas", 2, fork, bounds=BOUNDS).records[0, 2].inherited_service_s == 3


def test_the_longest_path_outlives_a_shorter_late_thread() -> None:
    fork = Workload(calls=[Step(steps=1), Step(steps=1), Step(steps=5), Step(steps=1, parents=(0,))])

    outcome = play("atlas", 3, fork, bounds=BOUNDS)

    finishes = [
        (event["call"][1], event["pt_service"]) for event in outcome.events if event["ev"] == "finish"
    ]
    assert finishes == [(0, 1), (1, 1), (3, 2), (2, 5)]


def test_a_starving_call_is_promoted_and_its_waiting_reset() -> None:
    # Two units of service against a stream of short programs: 2 * 2 units of waiting make the ratio.
    shorts = [chain(2, arrival=t) for t in (2, 4, 6, 8)]

    outcome = play("atlas", 1, chain(4), *shorts, beta=2, bounds=BOUNDS)

    promoted = [event for event in outcome.events if event["ev"] == "promote"]
    assert promoted == [{"t": 6, "ev": "promote", "call": [0, 0], "ratio": 2}]
    record = outcome.records[0, 0]
    assert (record.wait_s, record.table_wait_s, record.promotions) == (6, 2, 1)
    assert record.service_s == 4


def test_a_period_of_steps_delays_decisions_but_not_refills() -> None:
    outcome = play("atlas", 1, chain(1), chain(5), chain(1, arrival=1), period_steps=4, bounds=BOUNDS)

    assert outcome.gantt[:5] == [[0, [0, 0]], [1, [1, 0]], [2, [1, 0]], [3, [1, 0]], [4, [2, 0]]]
    assert outcome.finish_of(1) == 7


def test_sjf_starts_the_shortest_waiting_call_and_never_preempts() -> None:
    # The call of 1 arrives while the one of 4 runs, and waits for it; then it goes before the one of 3.
    outcome = play("sjf", 1, one(4), one(3, arrival=1), one(1, arrival=2))
    assert finishes(outcome, 3) == [4, 8, 5]
    assert sum(record.preemptions for record in outcome.records.values()) == 0


def test_round_robin_rotates_calls() -> None:
    outcome = play("round_robin", 1, one(3), one(3), quanta=(1.0, 1.0, 1.0, 1.0))
    assert [row[1] for row in outcome.gantt] == [[0, 0], [1, 0], [0, 0], [1, 0], [0, 0], [1, 0]]


def test_srpt_runs_the_program_with_the_least_remaining_service() -> None:
    # A call of 1 that opens a program of 6 waits for a program of 3.
    outcome = play("srpt", 1, chain(1, 5), chain(2, 1))
    assert finishes(outcome, 2) == [9, 3]


def test_srpt_preempts_a_larger_program_for_a_smaller_one() -> None:
    outcome = play("srpt", 1, one(6), one(2, arrival=1))
    assert finishes(outcome, 2) == [8, 3]


def test_srpt_lets_a_program_that_is_nearly_done_finish() -> None:
    # After 4 of 6 units, 2 remain: a newcomer of 3 waits.
    outcome = play("srpt", 1, one(6), one(3, arrival=4))
    assert finishes(outcome, 2) == [6, 9]


def test_the_exact_path_favours_the_short_branch() -> None:
    """A tree's second short branch starts at its own path; the scalar would start it at the long one's."""
    tree = Workload(calls=[Step(steps=1), Step(steps=6, parents=(0,)), Step(steps=1, parents=(0,), delay=8)])
    exact = play("atlas_dag", 2, tree, chain(2, 2, 2, arrival=2))
    scalar = play("atlas", 2, tree, chain(2, 2, 2, arrival=2))
    assert exact.records[0, 2].inherited_service_s == 1
    assert scalar.records[0, 2].inherited_service_s == 7


def test_without_demotion_a_call_keeps_its_initial_level() -> None:
    sinking = play("mlfq", 1, one(4), one(1, arrival=1))
    keeping = play("mlfq", 1, one(4), one(1, arrival=1), demotes=False)
    assert finishes(sinking, 2) == [5, 2]
    assert finishes(keeping, 2) == [4, 5]


def test_a_large_program_that_never_ran_is_promoted_too() -> None:
    machine = Machine(SchedulerConfig(policy="srpt", beta=2.0))
    machine.arrive(Arrival("large", "p", expected_s=10.0), 0.0)
    machine.arrive(Arrival("small", "q", expected_s=1.0), 0.0)
    assert [call.call_id for call in machine] == ["small", "large"]

    machine.tick(19.9)
    assert [machine.call(name).level for name in ("small", "large")] == [1, 2]

    machine.tick(20.0)
    assert machine.call("large").level == 1
    machine.check()


def test_a_finished_call_brings_its_siblings_forward() -> None:
    machine = Machine(SchedulerConfig(policy="srpt", beta=math.inf))
    machine.arrive(Arrival("a1", "a", expected_s=6.0), 0.0)
    machine.arrive(Arrival("a2", "a"), 0.0)
    machine.arrive(Arrival("b1", "b", expected_s=4.0), 0.0)
    machine.tick(0.0)
    assert next(iter(machine)).call_id == "b1"
    machine.start("a1", 0.0)
    machine.charge("a1", 5.0, 5.0)
    machine.finish("a1", 5.0)

    changes = machine.tick(5.0)

    assert [(change.call_id, change.reason) for change in changes] == [("a2", ChangeReason.RESIZING)]
    assert [call.call_id for call in machine] == ["a2", "b1"]
    machine.check()


def test_a_program_without_hints_is_demoted_by_its_attained_service() -> None:
    machine = Machine(SchedulerConfig(policy="srpt", beta=math.inf))
    machine.arrive(Arrival("a", "a"), 0.0)
    machine.arrive(Arrival("b", "b", expected_s=2.0), 0.0)
    assert [call.call_id for call in machine] == ["a", "b"]
    machine.start("a", 0.0)
    machine.charge("a", 3.0, 3.0)
    machine.tick(3.0)
    assert [call.call_id for call in machine] == ["b", "a"]


def test_the_first_service_of_a_call_that_waited_long_may_promote_it() -> None:
    """Without a hint and without service it has no ratio, however long it waits."""
    machine = Machine(SchedulerConfig(policy="srpt", beta=2.0, bounds=(100.0,)))
    machine.arrive(Arrival("a", "a"), 0.0)
    assert machine.tick(10.0) == []
    assert machine.starvation.next_deadline_s == math.inf
    machine.start("a", 10.0)
    machine.charge("a", 1.0, 11.0)

    assert [change.reason for change in machine.tick(11.0)] == [ChangeReason.PROMOTION]
    machine.check()


def test_a_promoted_call_keeps_its_position_when_its_program_changes() -> None:
    machine = Machine(SchedulerConfig(policy="srpt", beta=1.0))
    machine.arrive(Arrival("a1", "a", expected_s=2.0), 0.0)
    machine.tick(2.0)
    assert machine.call("a1").rank == (1, 0.0, 1)

    machine.arrive(Arrival("a2", "a", expected_s=9.0), 2.0)
    machine.tick(2.0)

    assert machine.call("a1").rank == (1, 0.0, 1)
    machine.check()


def test_weighted_tokens_count_an_output_token_twice() -> None:
    config = SchedulerConfig(service="tokens", token_s=0.5)
    assert config.nominal_service_s(10, 3) == 8.0


def test_a_waiting_call_does_not_preempt_a_running_promoted_one() -> None:
    machine = Machine(SchedulerConfig(policy="sjf", beta=1.0))
    machine.arrive(Arrival("a", "a", expected_s=1.0), 0.0)
    machine.arrive(Arrival("b", "b", expected_s=1.0), 0.0)
    machine.tick(1.0)
    assert [machine.call(name).level for name in "ab"] == [1, 1]

    machine.start("b", 1.0)

    assert [call.call_id for call in machine.batch(1)] == ["b"]
    machine.check()
