from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from tests.report_links import free_address, serving

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.boost import work_of
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.reports.call_arguments import CallIdentity
from autellix_backend.reports.report import EngineReport
from autellix_backend.vllm_plugin.ranks import UNRANKED
from autellix_backend.vllm_plugin.runs import MAX_RUNS
from autellix_backend.vllm_plugin.settings import PluginSettings
from autellix_backend.vllm_plugin.steps import StepTokens
from autellix_backend.vllm_plugin.tracker import PROGRAM_IDLE_S, CallTracker

DONE: dict[str, Any] = {"prompt_tokens": 10, "output_tokens": 3, "finish_reason": "stop", "is_aborted": False}


@pytest.fixture
def tracker() -> Iterator[CallTracker]:
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy="atlas", bounds=(1.0, 2.0))))
    yield tracker
    tracker.machine.check()


def identity(
    call_id: str = "c",
    program_id: str = "p",
    service_s: float | None = None,
    **facts: Any,
) -> CallIdentity:
    arrival = Arrival("r", program_id, service_s=service_s, inherited_s=service_s, **facts)
    return CallIdentity(call_id=call_id, arrival=arrival)


def number(tracker: CallTracker, request_id: str) -> int:
    """Return the place of a tracked call as one number."""
    rank = tracker.rank(request_id)
    assert rank is not None
    return rank.number


def test_report_of_a_call(tracker: CallTracker) -> None:
    """The report has the caller's call id, the request id, times, steps and tokens."""
    tracker.charge(StepTokens(), 0.1, 0.0)
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 1.0, cached_tokens=8)
    tracker.charge(StepTokens(decoded={"r": 1, "unknown": 1}), 0.5, 1.5)
    tracker.preempt("r", 1.5)
    tracker.start("r", 2.0, cached_tokens=16)
    tracker.charge(StepTokens(decoded={"r": 1}), 0.25, 2.25)
    account = tracker.close("r", 2.25, **DONE)
    assert (account.call_id, account.request_id, account.program_id) == ("c", "r", "p")
    assert (account.wait_s, account.service_s, account.preemptions) == (1.5, 0.75, 1)
    assert (account.arrival_step, account.finish_step, account.engine_steps) == (1, 3, 2)
    assert (account.prompt_tokens, account.output_tokens, account.cached_tokens) == (10, 3, 8)
    assert (account.finish_reason, account.is_aborted) == ("stop", False)
    assert len(tracker) == 0


def test_a_report_names_the_runs_of_a_call_and_the_end_of_its_prefill(tracker: CallTracker) -> None:
    tracker.arrive("r", identity(), 10.0)
    tracker.start("r", 11.0, cached_tokens=0)
    tracker.charge(StepTokens(prefilled={"r": 9}), 0.5, 11.5)
    tracker.charge(StepTokens(decoded={"r": 1}), 0.5, 12.0)
    tracker.preempt("r", 12.0)
    tracker.start("r", 14.0, cached_tokens=0)
    tracker.charge(StepTokens(prefilled={"r": 10}), 0.5, 14.5)
    account = tracker.close("r", 15.0, **DONE)

    assert account.runs == ((1.0, 2.0), (4.0, 5.0))
    assert account.prefilled_s == 1.5


def test_a_call_that_never_ran_has_no_runs(tracker: CallTracker) -> None:
    tracker.arrive("r", identity(), 10.0)
    account = tracker.close("r", 15.0, **DONE)

    assert (account.runs, account.prefilled_s) == ((), None)


def test_the_last_runs_of_many_are_one(tracker: CallTracker) -> None:
    tracker.arrive("r", identity(), 0.0)
    for second in range(MAX_RUNS + 2):
        tracker.start("r", second, cached_tokens=0)
        tracker.preempt("r", second + 0.5)
    runs = tracker.close("r", 100.0, **DONE).runs

    assert len(runs) == MAX_RUNS
    assert runs[-2:] == ((MAX_RUNS - 2.0, MAX_RUNS - 1.5), (MAX_RUNS - 1.0, MAX_RUNS + 1.5))


class Gateway:
    """What the report server does for a tracker, kept in a list."""

    has_gateways = True
    dropped_records = 0

    def __init__(self) -> None:
        self.reports: list[EngineReport] = []

    def send(self, gateway: str, report: EngineReport) -> None:
        """Keep a report."""
        self.reports.append(EngineReport.from_bytes(report.to_bytes()))


@pytest.mark.parametrize("policy", ["plas", "atlas", "atlas_dag", "boost", "fcfs"])
def test_a_call_that_is_aborted_during_a_step_is_charged_for_it(policy: str) -> None:
    """Its program and its tenant are, and its report waits for that."""
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy=policy)))
    gateway = Gateway()
    tracker.reports = gateway  # type: ignore[assignment]
    tracker.arrive("other", identity(program_id="other"), 0.0)
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 1.0, cached_tokens=0)
    tracker.charge(StepTokens(prefilled={"r": 9}), 0.5, 1.5)
    tracker.close("r", 1.6, **DONE | {"is_aborted": True}, steps_under_way=2)
    assert gateway.reports == []
    tracker.charge(StepTokens(prefilled={"r": 9}), 0.25, 1.75)
    assert gateway.reports == []
    tracker.charge(StepTokens(decoded={"r": 1}), 0.125, 1.875)

    [report] = gateway.reports
    assert (report.service_s, report.engine_steps, report.finish_s) == (0.875, 3, 1.6)
    assert tracker.machine.table["p"].service_s == 0.875
    tracker.machine.check()


def test_a_step_beyond_the_last_token_is_charged_to_the_program(tracker: CallTracker) -> None:
    """The answer of a call that is done waits for its report."""
    gateway = Gateway()
    tracker.reports = gateway  # type: ignore[assignment]
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 1.0, cached_tokens=0)
    tracker.charge(StepTokens(decoded={"r": 1}), 0.5, 1.5)
    tracker.close("r", 1.5, **DONE, steps_under_way=1)
    assert [report.service_s for report in gateway.reports] == [0.5]
    tracker.charge(StepTokens(decoded={"r": 1}), 0.5, 2.0)
    assert len(gateway.reports) == 1
    assert tracker.machine.table["p"].service_s == 1.0


def test_a_later_call_of_the_same_id_is_not_charged_for_an_earlier_one(tracker: CallTracker) -> None:
    gateway = Gateway()
    tracker.reports = gateway  # type: ignore[assignment]
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 0.0, cached_tokens=0)
    tracker.close("r", 0.5, **DONE | {"is_aborted": True}, steps_under_way=1)
    tracker.arrive("r", identity(program_id="q"), 0.5)
    tracker.start("r", 0.5, cached_tokens=0)
    tracker.charge(StepTokens(prefilled={"r": 9}), 1.0, 1.0)
    tracker.charge(StepTokens(prefilled={"r": 9}), 2.0, 3.0)
    tracker.close("r", 3.0, **DONE)

    assert [(report.program_id, report.service_s) for report in gateway.reports] == [("p", 1.0), ("q", 2.0)]


def test_a_call_whose_step_never_ends_is_reported_without_it(tracker: CallTracker) -> None:
    """As the steps under way are lost with a part of the engine, or the next call has its id."""
    gateway = Gateway()
    tracker.reports = gateway  # type: ignore[assignment]
    for _ in range(2):
        tracker.arrive("r", identity(), 0.0)
        tracker.start("r", 0.0, cached_tokens=0)
        tracker.close("r", 0.5, **DONE | {"is_aborted": True}, steps_under_way=1)
    assert len(gateway.reports) == 1
    tracker.settle_left()

    assert [report.service_s for report in gateway.reports] == [0.0, 0.0]


def test_children_of_a_call_are_tracked_apart(tracker: CallTracker) -> None:
    """The requests of one n > 1 call share its id in their reports and nothing else."""
    for request_id in ("0_r", "1_r"):
        tracker.arrive(request_id, identity(), 0.0)
    accounts = [tracker.close(request_id, 1.0, **DONE) for request_id in ("0_r", "1_r")]
    assert [account.call_id for account in accounts] == ["c", "c"]
    assert [account.request_id for account in accounts] == ["0_r", "1_r"]


@pytest.mark.parametrize(("policy", "inherited_s"), [("atlas_dag", 2.0), ("atlas", 5.0)])
def test_a_call_follows_the_parents_that_its_client_names(policy: str, inherited_s: float) -> None:
    """By the ids of the client: the engine has requests of its own ids."""
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy=policy)))
    for call_id, cost_s in (("short", 2.0), ("long", 5.0)):
        tracker.arrive(f"r-{call_id}", identity(call_id, parents=()), 0.0)
        tracker.start(f"r-{call_id}", 0.0, cached_tokens=0)
        tracker.charge(StepTokens(decoded={f"r-{call_id}": 1}), cost_s, 1.0)
    for call_id in ("short", "long"):
        tracker.close(f"r-{call_id}", 1.0, **DONE)
    tracker.arrive("r-next", identity("next", parents=("short",)), 1.0)
    tracker.arrive("r-join", identity("join", parents=("short", "long")), 1.0)
    tracker.arrive("r-unknown", identity("unknown", parents=("short", "elsewhere")), 1.0)

    inherited = [
        tracker.machine.call(f"r-{name}").inherited_service_s for name in ("next", "join", "unknown")
    ]
    assert inherited == [inherited_s, 5.0, 5.0]


def test_a_gateways_program_lives_as_long_as_its_calls(tracker: CallTracker) -> None:
    """With a gateway in front the entry goes with the last active call."""
    tracker.arrive("a", identity(service_s=3.0), 0.0)
    tracker.arrive("b", identity(service_s=3.0), 0.0)
    assert tracker.machine.call("a").rank[0] == 3
    tracker.close("a", 1.0, **DONE)
    assert "p" in tracker.machine.table
    tracker.close("b", 1.0, **DONE)
    assert "p" not in tracker.machine.table


@pytest.mark.parametrize("config", [{"policy": "boost"}, {"admission": "working_set"}], ids=str)
def test_boost_and_admission_need_a_program_between_its_calls(config: dict[str, Any]) -> None:
    """Its context stays, and it has not ended, whoever keeps its totals."""
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(**config)), kv_tokens=1000)
    tracker.arrive("a", identity(service_s=3.0), 0.0)
    tracker.close("a", 1.0, **DONE)
    assert "p" in tracker.machine.table


def test_a_program_ends_with_its_last_call(tracker: CallTracker) -> None:
    """The entry goes with the last active call."""
    tracker.arrive("a", replace(identity(), is_last=True), 0.0)
    tracker.arrive("b", identity(), 0.0)
    tracker.close("a", 1.0, **DONE)
    assert "p" in tracker.machine.table
    tracker.close("b", 1.0, **DONE)
    assert "p" not in tracker.machine.table


def test_a_call_names_programs_that_have_ended(tracker: CallTracker) -> None:
    tracker.arrive("a", identity(program_id="old"), 0.0)
    tracker.close("a", 1.0, **DONE)
    tracker.arrive("b", replace(identity(), ended=("old", "unknown", "p")), 2.0)
    assert "old" not in tracker.machine.table
    assert "p" in tracker.machine.table


def test_gateways_end_programs_between_calls(tracker: CallTracker) -> None:
    tracker.take_ends(0.0)
    tracker.arrive("a", identity(program_id="old"), 0.0)
    tracker.close("a", 1.0, **DONE)
    with serving(free_address()) as server:
        tracker.reports = server
        server._ends.extend(("old", "unknown"))
        tracker.take_ends(2.0)
        tracker.reports = None
    assert "old" not in tracker.machine.table


def test_an_anonymous_request_leaves_no_program(tracker: CallTracker) -> None:
    """A request that is its own program takes the entry with it."""
    tracker.arrive("r", identity(call_id="r", program_id="r"), 0.0)
    tracker.close("r", 1.0, **DONE)
    assert len(tracker.machine.table) == 0


def test_an_idle_program_expires(tracker: CallTracker) -> None:
    """Without a gateway the entry stays until the program was idle for long."""
    tracker.arrive("r", identity(), 0.0)
    tracker.close("r", 1.0, **DONE)
    tracker.charge(StepTokens(), 0.1, PROGRAM_IDLE_S)
    assert "p" in tracker.machine.table
    tracker.charge(StepTokens(), 0.1, PROGRAM_IDLE_S + 100)
    assert "p" not in tracker.machine.table


def test_too_many_idle_programs_expire_sooner(tracker: CallTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autellix_backend.vllm_plugin.tracker.MAX_PROGRAMS", 1)
    for number, now in enumerate((0.0, 0.45 * PROGRAM_IDLE_S, 0.9 * PROGRAM_IDLE_S)):
        tracker.arrive("r", identity(program_id=f"p{number}"), now)
        tracker.close("r", now, **DONE)
    tracker.charge(StepTokens(), 0.1, 0.95 * PROGRAM_IDLE_S)
    assert [program.program_id for program in tracker.machine.table.programs()] == ["p2"]


def test_priority_follows_level_then_order(tracker: CallTracker) -> None:
    """A later arrival of a better level has the smaller number."""
    tracker.arrive("old", identity(program_id="served", service_s=5.0), 0.0)
    tracker.arrive("new", identity(program_id="fresh"), 1.0)
    tracker.arrive("newest", identity(program_id="fresh"), 1.0)
    assert number(tracker, "new") < number(tracker, "newest") < number(tracker, "old")


def test_tokens_can_be_charged_instead_of_time() -> None:
    """Prefilling ten tokens and decoding one cost 10 + 2 weighted tokens."""
    config = SchedulerConfig(policy="plas", service="tokens", token_s=0.5)
    tracker = CallTracker(PluginSettings(scheduler=config))
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 0.0, cached_tokens=0)
    tracker.charge(StepTokens(prefilled={"r": 10}), 1.0, 1.0)
    tracker.charge(StepTokens(decoded={"r": 1}), 1.0, 2.0)
    assert tracker.machine.call("r").service_s == 6.0


def test_the_shortest_request_goes_first_under_sjf() -> None:
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy="sjf")))
    tracker.arrive("long", identity(), 0.0, prompt_tokens=10, max_tokens=100)
    tracker.arrive("short", identity(), 1.0, prompt_tokens=100, max_tokens=10)
    assert number(tracker, "short") < number(tracker, "long") < UNRANKED


def boosted() -> CallTracker:
    """A tracker whose programs differ much in size, so that the boost is at its full strength."""
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy="boost", boost=1.0)))
    tracker.machine.table.statistics.sizes_of("").known = 2.0
    return tracker


def test_the_spread_that_the_gateway_has_measured_is_where_an_engine_begins() -> None:
    tracker = CallTracker(PluginSettings(scheduler=SchedulerConfig(policy="boost")))
    tracker.arrive("r", replace(identity(), spread=1.75), 0.0)
    tracker.arrive("q", identity(), 0.0)

    assert tracker.machine.table.statistics.sizes_of("").value == 1.75


def test_what_the_gateway_knows_orders_boosted_programs() -> None:
    """Age puts a program first, work done behind one that has none."""
    tracker = boosted()
    tracker.arrive("first", identity(program_id="a"), 100.0)
    tracker.arrive("older", identity(program_id="b", age_s=150.0), 200.0)
    assert number(tracker, "older") < number(tracker, "first") < UNRANKED
    tracker.arrive("served", identity(program_id="c", age_s=150.0, work=1e9), 300.0)
    tracker.arrive("fresh", identity(program_id="d", age_s=149.0), 300.0)
    tracker.machine.tick(300.0)
    assert tracker.machine.boost.strength_s > 0
    assert number(tracker, "fresh") < number(tracker, "served")


@pytest.mark.parametrize(
    ("keys", "sequences"),
    [((-1e4, -1.5, -1e-6, 0.0, 1e-6, 1.5, 1e4), (-5, 0, 1 << 40)), ((-1e300, -1e12, 0.0, 1e12, 1e300), (0,))],
    ids=["in bounds", "out of bounds"],
)
def test_priorities_follow_ranks_whose_keys_are_negative(
    tracker: CallTracker, keys: tuple[float, ...], sequences: tuple[int, ...]
) -> None:
    """Level before key before sequence, also where a sequence is negative."""
    tracker.arrive("r", identity(), 0.0)
    call = tracker.machine.call("r")
    old = call.rank
    ranks = list(product((1, 2, 9), keys, sequences))
    priorities = []
    for call.level, call.own_key, call.seq in ranks:
        priorities.append(number(tracker, "r"))
    call.level, call.own_key, call.seq = old
    assert ranks == sorted(ranks)
    assert priorities == sorted(priorities)
    assert priorities[-1] < UNRANKED
    assert len(set(priorities)) >= 3 * 3 * len(sequences)


def test_work_counts_what_was_not_cached(tracker: CallTracker) -> None:
    """Prompt tokens of a call that never started count nothing."""
    program = tracker.machine.table.ensure("p", 0.0)
    tracker.arrive("r", identity(), 0.0)
    tracker.start("r", 0.0, cached_tokens=8)
    tracker.close("r", 1.0, **DONE)
    assert program.work == work_of(2, 3)
    tracker.arrive("r", identity(), 1.0)
    tracker.close("r", 2.0, prompt_tokens=10, output_tokens=0, finish_reason="abort", is_aborted=True)
    assert program.work == work_of(2, 3)


def test_steps_teach_the_cost_of_a_token(tracker: CallTracker) -> None:
    tracker.charge(StepTokens(prefilled={"a": 100}, decoded={"b": 1, "c": 1}), 0.5, 1.0)
    assert tracker.machine.token_cost.seconds == pytest.approx(0.5 / work_of(100, 2))


def test_a_call_whose_program_does_not_fit_is_held_back() -> None:
    settings = PluginSettings(
        scheduler=SchedulerConfig(policy="boost", admission="working_set", kv_share=0.6)
    )
    tracker = CallTracker(settings, kv_tokens=1000)
    for number in range(2):
        tracker.arrive(f"r{number}", identity(program_id=f"p{number}"), 0.0, prompt_tokens=400)
    assert [tracker.is_held_back(name) for name in ("r0", "r1", "unknown")] == [False, True, False]
    assert tracker.machine.review(1.0, 1, lambda _: 400) == []
    tracker.start("r0", 1.0, cached_tokens=0)
    tracker.close("r0", 2.0, **DONE, context_tokens=403)
    tracker.machine.end_program("p0", 2.0)
    assert tracker.machine.review(3.0, 2, lambda _: 400) == ["r1"]
    assert not tracker.is_held_back("r1")
    tracker.machine.check()


def test_calls_in_the_batch_go_before_all_others(tracker: CallTracker) -> None:
    """The place is the priority until another order takes it away."""
    tracker.arrive("fresh", identity(tenant="a"), 0.0)
    tracker.arrive("served", identity(tenant="b", program_id="old", service_s=5.0), 0.0)
    ranks = [number(tracker, call_id) for call_id in ("fresh", "served")]
    served = tracker.machine.call("served")

    assert tracker.place([served]) == ["served"]
    assert number(tracker, "served") == 0 < number(tracker, "fresh") == ranks[0]
    assert tracker.place([served]) == []
    assert tracker.place([tracker.machine.call("fresh"), served]) == ["served", "fresh"]
    assert tracker.place([]) == ["fresh", "served"]
    assert [number(tracker, call_id) for call_id in ("fresh", "served")] == ranks


def test_the_tenant_and_its_weight_reach_the_machine(tracker: CallTracker) -> None:
    for tenant, weight in (("a", 1.0), ("b", 3.0)):
        for number in range(4):
            tracker.arrive(f"{tenant}{number}", identity(tenant=tenant, weight=weight), 0.0)
    assert sorted(call.tenant for call in tracker.machine.batch(4)) == ["a", "b", "b", "b"]
