"""The machine's events, one behaviour at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from tests.counting import calls_made

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.call import ChangeReason, LevelChange
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.errors import DuplicateCallError, IllegalMoveError, UnknownCallError
from autellix_backend.core.machine import Machine
from autellix_backend.core.statistics import MIN_SAMPLES
from autellix_backend.core.table import ProcessTable


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(SchedulerConfig(policy="atlas", bounds=(1, 4), beta=2.0))
    yield machine
    machine.check()


def run_for(machine: Machine, call_id: str, start: float, seconds: float) -> None:
    machine.start(call_id, start)
    machine.charge(call_id, seconds, start + seconds)


def test_a_call_queues_by_the_reported_service_of_its_program(machine: Machine) -> None:
    call = machine.arrive(Arrival("a", "p", service_s=2.0, wait_s=1.0, thread_id="3"), 0.0)

    assert (call.level, call.inherited_service_s, call.thread_id) == (2, 2.0, "3")
    assert machine.table["p"].wait_s == 1.0


def test_a_spread_that_another_table_measured_is_taken_for_its_tenant(machine: Machine) -> None:
    machine.observe_spread("tenant", 1.25)
    assert machine.table.statistics.sizes_of("tenant").known == 1.25
    assert machine.table.statistics.sizes_of("").known is None


def test_a_second_call_of_the_same_id_is_refused(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)

    with pytest.raises(DuplicateCallError, match="'a' is active already"):
        machine.arrive(Arrival("a", "q"), 1.0)


def test_an_id_may_be_used_again_after_its_call_left(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.finish("a", 1.0)

    assert machine.arrive(Arrival("a", "p"), 2.0).arrival_s == 2.0


def test_an_unknown_call_is_refused(machine: Machine) -> None:
    with pytest.raises(UnknownCallError, match="'a' is not active"):
        machine.charge("a", 1.0, 0.0)


def test_a_running_call_cannot_start_again(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.start("a", 0.0)

    with pytest.raises(IllegalMoveError, match="cannot start call 'a' while it is running"):
        machine.start("a", 1.0)


def test_a_waiting_call_cannot_be_preempted(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)

    with pytest.raises(IllegalMoveError, match="cannot preempt call 'a' while it is waiting"):
        machine.preempt("a", 1.0)


def test_a_record_has_the_outcome_of_a_call(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", thread_id="1"), 10.0)
    run_for(machine, "a", 11.0, 2.0)
    machine.tick(13.0)
    machine.preempt("a", 13.0)
    run_for(machine, "a", 15.0, 1.0)

    record = machine.finish("a", 16.0)

    assert (record.call_id, record.program_id, record.thread_id) == ("a", "p", "1")
    assert (record.arrival_s, record.finish_s) == (10.0, 16.0)
    assert (record.wait_s, record.table_wait_s, record.service_s) == (3.0, 3.0, 3.0)
    assert (record.level, record.preemptions, record.demotions, record.promotions) == (2, 1, 1, 0)
    assert not record.is_aborted
    assert (machine.table["p"].service_s, machine.table["p"].wait_s) == (3.0, 3.0)


def test_an_aborted_call_is_charged_for_what_ran(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    run_for(machine, "a", 1.0, 2.0)

    assert machine.abort("a", 3.0).is_aborted
    assert machine.table["p"].service_s == 2.0


def test_time_charged_after_a_preemption_counts(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.start("a", 0.0)
    machine.preempt("a", 1.0)
    machine.charge("a", 1.0, 1.0)

    assert [(change.old, change.new) for change in machine.tick(1.0)] == [(1, 2)]


def test_a_used_up_quantum_costs_one_level(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    run_for(machine, "a", 0.0, 100.0)

    expected = [LevelChange(call_id="a", old=1, new=2, reason=ChangeReason.DEMOTION)]
    assert machine.tick(100.0) == expected
    assert machine.tick(100.0) == []


def test_a_call_is_promoted_when_its_ratio_reaches_the_threshold(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)

    assert machine.tick(3.999) == []
    expected = [LevelChange(call_id="a", old=2, new=1, reason=ChangeReason.PROMOTION)]
    assert machine.tick(4.0) == expected
    assert machine.tick(100.0) == []


def test_promotions_keep_the_order_of_the_queues(machine: Machine) -> None:
    machine.arrive(Arrival("low", "p", service_s=5.0), 0.0)
    machine.arrive(Arrival("high", "q", service_s=2.0), 0.0)
    machine.arrive(Arrival("later", "q"), 1.0)

    changes = machine.tick(50.0)

    assert [change.call_id for change in changes] == ["high", "later", "low"]
    assert [call.call_id for call in machine] == ["high", "later", "low"]


def test_a_finished_calls_waiting_counts_for_its_siblings(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)
    machine.arrive(Arrival("b", "p"), 0.0)
    machine.abort("b", 3.0)

    assert [change.call_id for change in machine.tick(3.0)] == ["a"]


def test_reported_waiting_counts_for_the_active_calls(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)
    machine.arrive(Arrival("b", "p", wait_s=3.0), 1.0)

    assert [change.call_id for change in machine.tick(1.0)] == ["a"]


def test_a_promotion_resets_the_calls_waiting_and_service(machine: Machine) -> None:
    call = machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)
    run_for(machine, "a", 1.0, 1.0)
    machine.preempt("a", 2.0)
    machine.tick(7.0)

    assert (call.level, call.unpaid_wait_at(7.0), call.unpaid_service_s) == (1, 0.0, 0.0)
    assert (call.wait_at(7.0), call.service_s) == (6.0, 1.0)


def test_a_promoted_call_decodes_for_as_long_as_it_prefilled_before_it_is_demoted(machine: Machine) -> None:
    call = machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)
    machine.tick(4.0)
    machine.start("a", 4.0)
    machine.charge("a", 3.0, 7.0, is_prefill=True)
    assert (machine.tick(7.0), machine.quanta.has_deferred, call.has_prefill_debt) == ([], True, True)
    machine.charge("a", 2.0, 9.0)
    assert (machine.tick(9.0), call.level) == ([], 1)
    machine.charge("a", 1.0, 10.0)

    assert [change.reason for change in machine.tick(10.0)] == [ChangeReason.DEMOTION]
    assert not machine.quanta.has_deferred


def test_a_promoted_call_without_a_slot_is_demoted_like_others(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", service_s=2.0), 0.0)
    machine.tick(4.0)
    machine.start("a", 4.0)
    machine.charge("a", 3.0, 7.0, is_prefill=True)
    machine.tick(7.0)
    machine.preempt("a", 7.0)

    assert [change.reason for change in machine.tick(7.0)] == [ChangeReason.DEMOTION]


def test_a_call_that_did_not_starve_is_demoted_during_its_prefill(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.start("a", 0.0)
    machine.charge("a", 1.0, 1.0, is_prefill=True)

    assert [change.reason for change in machine.tick(1.0)] == [ChangeReason.DEMOTION]


def test_the_first_service_of_a_long_wait_may_promote_at_once() -> None:
    machine = Machine(SchedulerConfig(policy="mlfq", bounds=(1,), beta=2.0))
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.arrive(Arrival("b", "p"), 0.0)
    run_for(machine, "a", 10.0, 1.0)

    changes = machine.tick(11.0)

    assert [change.reason for change in changes] == [ChangeReason.DEMOTION, ChangeReason.PROMOTION]
    assert machine.call("b").rank < machine.call("a").rank
    machine.check()


def test_the_batch_passes_over_calls_that_cannot_run(machine: Machine) -> None:
    for call_id in "abc":
        machine.arrive(Arrival(call_id, "p"), 0.0)

    batch = machine.batch(2, admissible=lambda call: call.call_id != "a")

    assert [call.call_id for call in batch] == ["b", "c"]


def test_an_ended_program_leaves_with_its_last_call(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p"), 0.0)
    machine.end_program("p", 1.0)
    machine.end_program("unknown", 1.0)
    assert "p" in machine.table

    machine.finish("a", 1.0)

    assert "p" not in machine.table
    assert len(machine) == 0


def test_the_cost_of_work_is_learned_from_steps(machine: Machine) -> None:
    machine.observe_step(50.0, 0.1, steps=3)
    assert machine.token_cost.seconds == pytest.approx(0.002)


def test_steps_teach_what_prefill_adds_to_them() -> None:
    machine = Machine(SchedulerConfig())
    machine.observe_step(40.0, 0.01, steps=20, prefilled=0)
    for _ in range(MIN_SAMPLES):
        assert machine.prefill.token_s is None
        machine.observe_step(140.0, 0.03, prefilled=100)

    assert machine.prefill.token_s == pytest.approx(0.0002)


def test_machines_may_share_a_table() -> None:
    table = ProcessTable()
    one, other = Machine(SchedulerConfig(), table), Machine(SchedulerConfig(), table)
    one.arrive(Arrival("a", "p"), 0.0)
    other.arrive(Arrival("b", "p"), 0.0)
    run_for(one, "a", 0.0, 3.0)
    one.finish("a", 3.0)

    assert other.arrive(Arrival("c", "p"), 3.0).inherited_service_s == 3.0
    one.check()
    other.check()


def test_the_inputs_of_the_next_tick_can_be_queried() -> None:
    machine = Machine(SchedulerConfig(policy="plas", bounds=(1.0,), beta=2.0))
    assert (machine.quanta.is_due, machine.starvation.next_deadline_s) == (False, math.inf)

    machine.arrive(Arrival("a", "p"), 0.0)
    machine.start("a", 0.0)
    machine.charge("a", 1.0, 1.0)
    assert machine.quanta.is_due
    machine.tick(1.0)
    machine.preempt("a", 1.0)

    assert not machine.quanta.is_due
    assert machine.starvation.next_deadline_s == pytest.approx(3.0)


def test_a_policy_that_reads_parents_uses_the_reported_inherited_service() -> None:
    machine = Machine(SchedulerConfig(policy="atlas_dag", bounds=(1, 4)))
    assert machine.arrive(Arrival("a", "p", service_s=9.0, inherited_s=2.0), 0.0).inherited_service_s == 2.0
    # Others go by the program's.
    other = Machine(SchedulerConfig(policy="plas", bounds=(1, 4)))
    assert other.arrive(Arrival("a", "p", service_s=9.0, inherited_s=2.0), 0.0).inherited_service_s == 9.0


def boosted() -> Machine:
    """Return a machine with a boost at full strength, a program that runs, and little cost of tokens."""
    machine = Machine(SchedulerConfig(policy="boost", boost=1.0, token_s=0.001))
    machine.table.statistics.sizes_of("").known = 2.0
    machine.arrive(Arrival("long", "p"), 0.0)
    machine.start("long", 0.0)
    return machine


def test_a_program_with_little_work_goes_before_one_that_came_earlier() -> None:
    machine = boosted()
    machine.arrive(Arrival("large", "q", work=1e6), 99.0)
    machine.arrive(Arrival("small", "r", age_s=0.0), 100.0)
    machine.tick(100.0)

    assert [call.call_id for call in machine][-2:] == ["small", "large"]
    machine.check()


def test_prompts_that_wait_count_against_their_program() -> None:
    machine = boosted()
    machine.arrive(Arrival("large", "q", context=Context(10**6)), 99.0)
    machine.arrive(Arrival("small", "r", context=Context(10**6, prefix="tools", prefix_tokens=10**6)), 100.0)
    machine.tick(100.0)

    assert [call.call_id for call in machine][-2:] == ["small", "large"]
    assert (machine.table["q"].waiting_work, machine.table["r"].waiting_work) == (1e6, 0.0)
    machine.abort("large", 100.0)
    assert machine.table["q"].waiting_work == 0.0


def test_a_prefix_longer_than_its_context_leaves_no_new_tokens() -> None:
    assert Arrival("a", "p", context=Context(10, prefix="tools", prefix_tokens=50)).new_tokens == 0
    assert Arrival("a", "p", context=Context(60, shared_tokens=20, prefix_tokens=50)).new_tokens == 10
    assert Arrival("a", "p").new_tokens == 0


def test_an_end_of_a_call_moves_the_other_calls_of_its_program() -> None:
    machine = boosted()
    machine.arrive(Arrival("q1", "q"), 100.0)
    machine.arrive(Arrival("q2", "q"), 100.0)
    machine.arrive(Arrival("r1", "r"), 101.0)
    machine.tick(101.0)
    assert [call.call_id for call in machine][-3:] == ["q1", "q2", "r1"]
    machine.finish("q1", 101.0, work=1e6)

    changes = machine.tick(101.0)

    assert [change.call_id for change in changes] == ["q2"]
    assert [call.call_id for call in machine][-2:] == ["r1", "q2"]


def test_a_boosted_machine_preempts_nobody() -> None:
    machine = boosted()
    assert not machine.preempts
    assert Machine(SchedulerConfig(policy="plas")).preempts
    assert not Machine(SchedulerConfig(policy="plas", preemption="never")).preempts


def test_a_new_strength_moves_no_program() -> None:
    """The order follows it all the same."""
    machine = boosted()
    machine.arrive(Arrival("large", "q", work=1e6), 99.0)
    machine.arrive(Arrival("small", "r", age_s=0.0), 100.0)
    assert not machine.tick(100.0)
    assert [call.call_id for call in machine][-2:] == ["small", "large"]

    machine.table.statistics.sizes_of("").known = 0.0

    assert not machine.tick(101.0)
    assert [call.call_id for call in machine][-2:] == ["large", "small"]
    machine.check()


def events_of_one_program(policy: str, admission: str, waiting: int) -> int:
    """Return the work of an arrival, a step and an end in a program with this many calls."""
    config = SchedulerConfig(policy=policy, admission=admission, boost=1.0, bounds=(1, 4), beta=2.0)
    machine = Machine(config, kv_tokens=1e9)
    machine.table.statistics.sizes_of("").known = 2.0
    machine.arrive(Arrival("other", "q", age_s=50.0), 0.0)
    for index in range(waiting):
        machine.arrive(Arrival(f"c{index}", "p", service_s=2.0, context=Context(100, 20)), 0.0)
    for index in range(8):
        machine.start(f"c{index}", 0.0)
    for tick in range(20):
        machine.tick(0.1 * tick)

    def events() -> None:
        machine.arrive(Arrival("late", "p", work=1e6, context=Context(100, 20)), 3.0)
        machine.review(3.0, 1, lambda _: 101)
        machine.tick(3.0)
        assert len(machine.batch(8)) == 8
        machine.charge("c0", 0.5, 3.0)
        machine.preempt("c1", 3.0)
        machine.finish("c0", 3.0, work=1e6, context_tokens=120)
        machine.tick(3.0)
        machine.abort("late", 3.0)
        machine.tick(3.0)

    work = calls_made(events)
    machine.check()
    return work


@pytest.mark.parametrize("admission", ["none", "working_set"])
@pytest.mark.parametrize("policy", ["boost", "plas", "atlas"])
def test_an_event_costs_the_same_however_many_calls_its_program_has(policy: str, admission: str) -> None:
    """Those of its own queue, its deadlines and its contexts: no event walks over its program's calls."""
    few, many = (events_of_one_program(policy, admission, waiting) for waiting in (50, 2000))

    assert many < 1.1 * few


def test_a_program_with_many_calls_moves_once() -> None:
    machine = boosted()
    machine.arrive(Arrival("r", "r"), 100.5)
    for index in range(50):
        machine.arrive(Arrival(f"q{index}", "q"), 100.0)
    machine.tick(101.0)
    assert [call.call_id for call in machine][-1] == "r"

    machine.arrive(Arrival("q50", "q", work=1e6), 101.0)

    assert [change.call_id for change in machine.tick(101.0)] == ["q0"]
    assert [call.call_id for call in machine][1:] == ["r", *(f"q{index}" for index in range(51))]


def test_a_withdrawn_call_leaves_the_move_of_its_program_to_the_next() -> None:
    machine = boosted()
    for call_id in ("q0", "q1"):
        machine.arrive(Arrival(call_id, "q"), 100.0)
    machine.tick(100.0)
    machine.arrive(Arrival("q2", "q", work=1e6), 100.0)

    machine._withdraw(machine.call("q0"), 100.0)
    machine.call("q0").is_admitted = False

    assert [change.call_id for change in machine.tick(100.0)] == ["q1"]
    machine.check()


def test_calls_that_run_or_are_pinned_hold_memory(machine: Machine) -> None:
    for call_id in "abc":
        machine.arrive(Arrival(call_id, "p"), 0.0)
    machine.start("a", 0.0)
    machine.pin("b")
    for call_id in "ac":
        machine.unpin(call_id)
    assert list(machine.holding["p"]) == ["a", "b"]

    machine.preempt("a", 1.0)
    machine.unpin("b")

    assert not machine.holding


def work_of_outgrowing(programs: int) -> float:
    """Return the work per program of a review that deactivates a third of the programs."""
    config = SchedulerConfig(policy="boost", admission="working_set", kv_share=1.0)
    machine = Machine(config, kv_tokens=100.0 * programs)
    for index in range(programs):
        machine.arrive(Arrival(f"c{index}", f"p{index}", context=Context(100)), 0.0)
        machine.start(f"c{index}", 0.0)
    work = calls_made(lambda: machine.review(1.0, 100, lambda _: 150))
    assert machine.admission.memory is not None
    assert len(machine.admission.memory.inactive) == pytest.approx(programs / 3, abs=1)
    machine.check()
    return work / programs


def test_programs_that_have_outgrown_the_memory_are_deactivated_in_one_walk() -> None:
    few, many = map(work_of_outgrowing, (30, 600))

    assert many < 2.0 * few


def test_without_admission_time_alone_admits_no_call() -> None:
    assert Machine(SchedulerConfig(admission="none")).admission.wake_s == math.inf


def test_a_step_that_a_call_left_during_is_charged_to_its_program(machine: Machine) -> None:
    machine.arrive(Arrival("a", "p", tenant="lab"), 0.0)
    machine.arrive(Arrival("b", "p", tenant="lab"), 0.0)
    run_for(machine, "a", 0.0, 1.0)
    record = machine.finish("a", 1.0)

    machine.charge_left(record, "lab", 0.5, 1.5)

    assert machine.table["p"].service_s == 1.5
    machine.finish("b", 2.0)
    machine.end_program("p", 2.0)
    machine.charge_left(record, "lab", 0.5, 2.5)
    assert machine.table.get("p") is None
