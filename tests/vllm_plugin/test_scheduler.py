"""The scheduler class inside real vLLM engines: equal outputs, no leaks, stock order under fcfs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.report_links import overhearing

from autellix_backend.reports.report import EngineReport
from autellix_backend.reports.snapshot import EngineSnapshot

# The first test pays for vLLM's imports, on a machine that may be busy.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

# The worker's clock counts looks at it as milliseconds: a step costs a few of them.
SCHEDULER = {
    "policy": "atlas",
    "bounds": [0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25],
    "beta": 1.0,
    "preemption": "always",
}
ADMITTING = {"policy": "boost", "admission": "working_set", "boost": 0.7}
CONFIGURATIONS = [(True, True), (True, False), (False, True), (False, False)]

Scenario = dict[str, Any]


def make_calls(seed: int = 1, count: int = 56) -> list[Scenario]:
    """Calls of a few programs, more than the slots and the KV blocks can hold; some share a prefix."""
    generator = random.Random(seed)
    shared = [generator.randrange(2, 512) for _ in range(64)]
    calls = []
    for number in range(count):
        own = [generator.randrange(2, 512) for _ in range(generator.choice([5, 20, 40, 90]))]
        calls.append(
            {
                "id": f"call-{number}",
                "step": generator.randrange(0, 150),
                "prompt": shared + own if number % 3 == 0 else own,
                "max_tokens": generator.choice([1, 4, 16, 32, 48]),
                "extra_args": {
                    "autellix_program": f"program-{generator.randrange(8)}",
                    "autellix_call": f"id-{number}",
                },
            }
        )
    return calls


def scenario(**changes: Any) -> Scenario:
    """A small engine under more work than it holds."""
    base: Scenario = {
        "scheduler": "autellix",
        "calls": make_calls(),
        "max_num_seqs": 4,
        "kv_blocks": 13,
        "is_async": False,
        "has_prefix_caching": True,
        "additional_config": {"autellix": {"scheduler": SCHEDULER}},
    }
    return base | changes


@pytest.fixture(scope="session")
def stock_runs() -> dict[tuple[bool, bool], Scenario]:
    """Runs of the stock scheduler, by (is_async, has_prefix_caching), each made once."""
    return {}


def run_stock(
    engine_worker: Any, stock_runs: dict[tuple[bool, bool], Scenario], is_async: bool, has_cache: bool
) -> Scenario:
    """Run the scenario under vLLM's own first come, first served."""
    key = (is_async, has_cache)
    if key not in stock_runs:
        stock_runs[key] = engine_worker.run(
            scenario(scheduler="stock", additional_config={}, is_async=is_async, has_prefix_caching=has_cache)
        )
    run = stock_runs[key]
    assert "error" not in run, run["error"]
    return run


def assert_clean(run: Scenario) -> None:
    """Nothing may be left in the engine or in the machine."""
    assert "error" not in run, run["error"]
    assert run["is_degraded"] is False
    assert run["leaked_blocks"] == 0
    assert run["requests_left"] == 0
    assert run["calls_left"] == 0


@pytest.mark.parametrize(("is_async", "has_cache"), CONFIGURATIONS)
def test_outputs_equal_first_come_first_served(
    engine_worker: Any,
    stock_runs: Any,
    is_async: bool,
    has_cache: bool,
) -> None:
    """Two hundred forced preemptions and more do not change a single greedy token."""
    expected = run_stock(engine_worker, stock_runs, is_async, has_cache)
    actual = engine_worker.run(scenario(is_async=is_async, has_prefix_caching=has_cache))
    assert_clean(actual)
    assert ("AsyncScheduler" in actual["bases"]) is is_async
    assert expected["outputs"] == actual["outputs"]
    assert len(actual["finished"]) == len(make_calls())
    forced = actual["slot_preemptions"] + actual["block_preemptions"]
    assert forced >= 200


@pytest.mark.parametrize("is_async", [True, False])
def test_a_skipped_restore_step_shows(engine_worker: Any, stock_runs: Any, is_async: bool) -> None:
    """The comparison can fail: a victim that keeps its count of computed tokens gives other outputs."""
    expected = run_stock(engine_worker, stock_runs, is_async, True)
    faulty = engine_worker.run(scenario(scheduler="keeps_computed_tokens", is_async=is_async))
    assert "error" in faulty or faulty["outputs"] != expected["outputs"]


def run_with_aborts(
    engine_worker: Any, stock_runs: Any, base: Scenario, *, is_async: bool, **facts: Any
) -> Scenario:
    """Abort calls while they run, wait, are preempted or held back: the others answer as always."""
    calls = make_calls()
    for call in calls:
        call["extra_args"] |= {"autellix_last": 1, **facts}
    victims = random.Random(7).sample([call["id"] for call in calls], 24)
    aborts = {str(20 + 9 * place): [call_id] for place, call_id in enumerate(victims)}
    run: Scenario = engine_worker.run(base | {"calls": calls, "aborts": aborts, "is_async": is_async})
    assert_clean(run)
    assert run["programs_left"] == 0
    aborted = {call["id"] for call in calls} - set(run["finished"])
    assert aborted
    assert aborted <= set(victims)
    complete = run_stock(engine_worker, stock_runs, is_async, True)["outputs"]
    assert {i: complete[i] for i in run["finished"]} == {i: run["outputs"][i] for i in run["finished"]}
    return run


@pytest.mark.parametrize("is_async", [True, False])
def test_aborts_leave_nothing_behind(engine_worker: Any, stock_runs: Any, is_async: bool) -> None:
    """Calls aborted while running, waiting and preempted free their blocks and leave the machine.

    The steps that they were in are charged, too.
    """
    run = run_with_aborts(engine_worker, stock_runs, scenario(), is_async=is_async, autellix_service_s=0.0)
    assert run["slot_preemptions"] + run["block_preemptions"] > 0
    assert run["charged_s"] == pytest.approx(run["ran_s"])
    assert (run["aborted_in_step"] > 0) is is_async


def test_fcfs_keeps_the_stock_order(engine_worker: Any, stock_runs: Any) -> None:
    """Under fcfs the plugin only reports: the same calls finish in the same order and step."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    actual = engine_worker.run(scenario(additional_config={"autellix": {"scheduler": {"policy": "fcfs"}}}))
    assert_clean(actual)
    for fact in ("finished", "outputs", "steps", "preemptions"):
        assert expected[fact] == actual[fact]
    assert actual["slot_preemptions"] + actual["block_preemptions"] == 0


@pytest.mark.parametrize("fault", ["fails_to_decide", "fails_to_preempt"])
def test_a_fault_of_ours_leaves_the_engine_running(engine_worker: Any, stock_runs: Any, fault: str) -> None:
    """When the decision raises, or a method that it calls has another name, every call still finishes."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    run = engine_worker.run(scenario(scheduler=fault))
    assert "error" not in run, run["error"]
    assert run["is_degraded"] is True
    assert (run["leaked_blocks"], run["requests_left"]) == (0, 0)
    assert expected["outputs"] == run["outputs"]


def admitting(**changes: Any) -> Scenario:
    """The same work under boosted order, and more contexts at once than a third of them has room for."""
    return scenario(additional_config={"autellix": {"scheduler": ADMITTING | changes}})


@pytest.mark.parametrize(("is_async", "has_cache"), CONFIGURATIONS)
def test_outputs_are_equal_where_requests_are_held_back(
    engine_worker: Any, stock_runs: Any, is_async: bool, has_cache: bool
) -> None:
    """Programs that do not fit wait without a standstill, although none of them ever ends."""
    expected = run_stock(engine_worker, stock_runs, is_async, has_cache)
    run = engine_worker.run(admitting() | {"is_async": is_async, "has_prefix_caching": has_cache})
    assert_clean(run)
    assert expected["outputs"] == run["outputs"]
    assert len(run["finished"]) == len(make_calls())
    assert run["held_back"] > 10
    assert run["slot_preemptions"] + run["block_preemptions"] == 0


@pytest.mark.parametrize("is_ended", [True, False])
def test_the_context_of_a_program_that_ended_is_evicted_before_that_of_an_idle_one(
    engine_worker: Any, is_ended: bool
) -> None:
    """The idle program's blocks were used least recently, and only programs that ended go before them."""
    idle, ended, newcomer = [2] * 96, [3] * 160, [4] * 224
    last = {"autellix_last": 1} if is_ended else {}
    calls = [
        {"id": "idle", "step": 0, "prompt": idle, "extra_args": {"autellix_program": "idle"}},
        {"id": "ended", "step": 10, "prompt": ended, "extra_args": {"autellix_program": "ended"} | last},
        {"id": "new", "step": 20, "prompt": newcomer, "extra_args": {"autellix_program": "new"}},
        {"id": "again", "step": 30, "prompt": idle + [5] * 10, "extra_args": {"autellix_program": "idle"}},
    ]

    run = engine_worker.run(admitting(kv_share=1.0) | {"calls": [call | {"max_tokens": 2} for call in calls]})

    assert_clean(run)
    assert run["cached"]["again"] == (96 if is_ended else 0)


@pytest.mark.parametrize("is_async", [True, False])
def test_clients_of_held_back_requests_may_vanish(
    engine_worker: Any, stock_runs: Any, is_async: bool
) -> None:
    """Aborted requests, held back or running, leave neither blocks nor programs behind."""
    run = run_with_aborts(engine_worker, stock_runs, admitting(), is_async=is_async)
    assert run["aborted_held_back"] > 0


def test_a_fault_inside_a_review_releases_what_is_held_back(engine_worker: Any, stock_runs: Any) -> None:
    """The engine goes on in order of arrival, with all requests."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    run = engine_worker.run(admitting() | {"scheduler": "fails_to_review"})
    assert "error" not in run, run["error"]
    assert run["is_degraded"] is True
    assert run["leaked_blocks"] == 0
    assert expected["outputs"] == run["outputs"]
    arrivals = [call["id"] for call in sorted(make_calls(), key=lambda call: int(call["step"]))]
    places = [arrivals.index(request_id.rsplit("-", 1)[0]) for request_id in run["released"]]
    assert len(places) > 2
    assert places == sorted(places)


def test_shared_prefixes_are_found(engine_worker: Any) -> None:
    """Programs that begin alike have a common prefix, and a later call shares its program's context."""
    generator = random.Random(5)

    def tokens(count: int) -> list[int]:
        return [generator.randrange(2, 512) for _ in range(count)]

    tools = tokens(70)
    calls = []
    for number in range(4):
        own = tools + tokens(40)
        for turn, prompt in enumerate((own, own + tokens(30))):
            calls.append(
                {
                    "id": f"call-{number}-{turn}",
                    "step": 20 * number + 10 * turn,
                    "prompt": prompt,
                    "max_tokens": 4,
                    "extra_args": {"autellix_program": f"program-{number}"},
                }
            )
    run = engine_worker.run(admitting() | {"calls": calls, "kv_blocks": 40})
    assert_clean(run)
    assert run["contexts"] == [
        [f"program-{number}", 110 + 30 * turn, 96 * turn, 64 * (number > 0)]
        for number in range(4)
        for turn in range(2)
    ]


def test_every_call_sends_its_report_and_the_engine_its_queues(
    engine_worker: Any, local_address: str
) -> None:
    """Gateways get snapshots, and one report per call, finished or aborted; the counts add up."""
    received: list[EngineReport] = []
    snapshots: list[EngineSnapshot] = []
    calls = make_calls(count=20)
    with overhearing(local_address, are_running=False) as overheard:
        run = engine_worker.run(
            scenario(
                calls=calls,
                aborts={"60": ["call-3", "call-4"]},
                additional_config={"autellix": {"scheduler": SCHEDULER, "report_address": local_address}},
            )
        )
        while len(received) < len(calls) or snapshots[-1].calls:
            message = overheard.next_message()
            if EngineSnapshot.is_one(message):
                snapshots.append(EngineSnapshot.from_bytes(message))
            else:
                received.append(EngineReport.from_bytes(message))
    assert_clean(run)
    accounts = {account.call_id: account for account in received}
    assert {call["extra_args"]["autellix_call"] for call in calls} == set(accounts)
    for call in calls:
        account = accounts[call["extra_args"]["autellix_call"]]
        assert account.program_id == call["extra_args"]["autellix_program"]
        assert account.prompt_tokens == len(call["prompt"])
        assert account.is_aborted is (call["id"] not in run["finished"])
        if not account.is_aborted:
            assert account.output_tokens == call["max_tokens"]
            assert account.finish_reason == "length"
            assert account.engine_steps >= call["max_tokens"]
            assert 0 < account.service_s <= account.finish_s - account.arrival_s
            assert account.arrival_step < account.finish_step
    assert sum(account.cached_tokens for account in received) > 0
    assert sum(account.preemptions for account in received) == run["preemptions"]
    assert json.loads(received[0].to_bytes())["dropped_records"] == 0
    last = snapshots[-1]
    assert (last.running, last.waiting, last.calls, sum(last.level_calls)) == (0, 0, (), 0)
    assert (last.slots, last.kv_total_blocks, last.kv_block_tokens) == (4, 12, 32)
    busy = [snapshot for snapshot in snapshots if snapshot.calls]
    assert busy
    for snapshot in busy:
        assert snapshot.running == sum(call.is_running for call in snapshot.calls) <= 4
        assert snapshot.running + snapshot.waiting == len(snapshot.calls) == sum(snapshot.level_calls)
        assert sum(call.kv_blocks for call in snapshot.calls) > 0
        assert snapshot.kv_used_blocks <= 12
        assert {call.call_id for call in snapshot.calls} <= set(accounts)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranked_queue_orders_like_vllms(engine_worker: Any, seed: int) -> None:
    """Random additions, removals and moves leave both queues with the same requests in the same order."""
    run = engine_worker.run({"compare_queues": seed})
    assert "error" not in run, run["error"]
    few, many = run["group_work"]
    assert few == many


@pytest.mark.parametrize("is_async", [True, False])
def test_a_pause_that_waits_leaves_no_call_half_written(
    engine_worker: Any, stock_runs: Any, is_async: bool
) -> None:
    """What vLLM drains would be on old weights after it: our victims end with the calls that run."""
    expected = run_stock(engine_worker, stock_runs, is_async, True)
    pauses = [45, 80, 120]
    run = engine_worker.run(scenario(pauses=pauses, is_async=is_async))
    assert_clean(run)
    assert run["half_written"] == [{}] * len(pauses)
    assert expected["outputs"] == run["outputs"]
    assert run["slot_preemptions"] >= 50
    assert len(run["finished"]) == len(set(run["finished"])) == len(make_calls())


def test_a_pause_finishes_what_admission_holds_back(engine_worker: Any, stock_runs: Any) -> None:
    """A preempted call whose program has become inactive is finished as well."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    admitting = {"autellix": {"scheduler": SCHEDULER | {"admission": "working_set", "kv_share": 0.5}}}
    run = engine_worker.run(scenario(pauses=[40, 60, 80, 100, 120], additional_config=admitting))
    assert_clean(run)
    assert run["half_written"] == [{}] * 5
    assert expected["outputs"] == run["outputs"]
    assert run["held_back"] > 0


def test_the_operators_priorities_come_before_our_order(engine_worker: Any, stock_runs: Any) -> None:
    """With --scheduling-policy priority, urgent calls go first, and within a priority our order preempts."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    calls = [call | {"step": 0, "priority": number % 3 - 1} for number, call in enumerate(make_calls())]
    run = engine_worker.run(scenario(calls=calls, scheduling_policy="priority"))
    assert_clean(run)
    assert expected["outputs"] == run["outputs"]
    assert run["slot_preemptions"] > 0
    # The first calls of a priority run beside the last ones of the priority before.
    assert out_of_place(run["finished"]) <= 8

    ignored = engine_worker.run(scenario(calls=calls))
    assert_clean(ignored)
    assert out_of_place(ignored["finished"]) >= 20


def out_of_place(finished: list[str]) -> int:
    """Count the calls that did not finish in the turn of their priority."""
    priorities = [int(call_id.removeprefix("call-")) % 3 for call_id in finished]
    return sum(one != other for one, other in zip(priorities, sorted(priorities), strict=True))


def test_an_unknown_vllm_that_passes_the_trial_is_used(engine_worker: Any, stock_runs: Any) -> None:
    """The trial leaves nothing behind in the engine: its answers are those of vLLM's own scheduler."""
    expected = run_stock(engine_worker, stock_runs, False, True)
    run = engine_worker.run(scenario(vllm_version="0.99.1"))
    assert "error" not in run, run["error"]
    assert run["is_degraded"] is False
    assert run["said"] == [
        (
            "Autellix: vLLM 0.99.1 is not one of 0.32, 0.33; it has passed the self-test, "
            "so its calls are ordered"
        )
    ]
    assert run["preemptions"] > expected["preemptions"]
    assert expected["outputs"] == run["outputs"]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_moved_module_leaves_the_engine_to_vllm(
    engine_worker: Any, stock_runs: Any, is_async: bool
) -> None:
    """Where our scheduler cannot even be imported, vLLM's own takes its place."""
    expected = run_stock(engine_worker, stock_runs, is_async, True)
    run = engine_worker.run(scenario(missing_module="vllm.v1.core.sched.output", is_async=is_async))
    assert "error" not in run, run["error"]
    assert run["scheduler"] == expected["scheduler"]
    assert len(run["said"]) == 1
    assert run["said"][0].endswith("this engine goes on in vLLM's own order")
    for fact in ("finished", "outputs", "steps", "preemptions"):
        assert expected[fact] == run[fact]
