"""The simulator as a whole: exact where stretches are concerned, complete, and honest about memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.names import POLICY_NAMES
from autellix_lab.sim import victims
from autellix_lab.sim.batch import RunningBatch
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.engine import Decision, SimEngine
from autellix_lab.sim.model import UNIT, EngineModel
from autellix_lab.sim.results import FullLoop, ProgramRecord, SimResult
from autellix_lab.sim.simulation import SimSettings, simulate, simulate_closed
from autellix_lab.sim.stretch import Stretch
from autellix_lab.workload.arrivals import poisson_arrivals
from autellix_lab.workload.fit import fit_program
from autellix_lab.workload.generate import generate_programs
from autellix_lab.workload.trace import CallTrace, ProgramTrace

SMALL = EngineModel(
    max_num_seqs=6,
    token_budget=128,
    step_s=0.01,
    decode_s=0.001,
    prefill_s=0.0005,
    kv_blocks=160,
    swap_block_s=0.001,
    swap_transfer_s=0.002,
)
BOUNDS = (0.2, 0.8, 3.2)


def workload(count: int = 18, rate_per_s: float = 0.8) -> list[tuple[float, ProgramTrace]]:
    programs = generate_programs("mixed", count, seed=3, tree_scale=0.1)
    fitted = [fit_program(program, length_scale=0.1, max_context_tokens=400) for program in programs]
    return list(zip(poisson_arrivals(count, rate_per_s, seed=3), fitted, strict=True))


def play(
    arrivals: Sequence[tuple[float, ProgramTrace]], policy: str = "plas", **changes: Any
) -> tuple[SimResult, list[tuple[str, Decision]]]:
    scheduler: dict[str, Any] = {
        key: changes.pop(key)
        for key in ("beta", "period_steps", "service", "demotes", "preemption")
        if key in changes
    }
    run = {
        key: changes.pop(key)
        for key in (
            "engines",
            "engine_speeds",
            "balancer",
            "shares_prefixes",
            "end_delay_s",
            "idle_s",
            "hint_sigma",
        )
        if key in changes
    }
    log: list[tuple[str, Decision]] = []
    settings = SimSettings(
        model=replace(SMALL, **changes),
        scheduler=SchedulerConfig(policy=policy, bounds=BOUNDS, **scheduler),
        **run,
    )
    result = simulate(arrivals, settings, log=lambda engine, decision: log.append((engine, decision)))
    return result, log


def rounded(record: ProgramRecord) -> tuple[object, ...]:
    times = (record.arrival_s, record.finish_s, record.path_s, record.wait_s, record.service_s)
    counts = (record.program_id, record.cached_tokens, record.preemptions)
    return (*counts, *(round(value, 6) for value in times))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every engine's invariants before each of its stretches."""
    begin = SimEngine.begin

    def checking_begin(self: SimEngine, now: float) -> float | None:
        end_s = begin(self, now)
        self.check()
        return end_s

    monkeypatch.setattr(SimEngine, "begin", checking_begin)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preemption": "always"},
        {"preemption": "never"},
        {"kv_blocks": 60},
        {"kv_blocks": 60, "prefill_s": 0.00001},
        {"resume": "swap"},
        {"resume": "swap", "swap": "per_block"},
        {"resume": "host"},
        {"resume": "host", "period_steps": 4},
        {"resume": "host", "prefill_s": 0.00001},
        {"has_prefix_cache": False},
        {"period_steps": 4},
        {"period_steps": 4, "overprovisions": False, "holds_arrivals": True},
        {"service": "tokens"},
        {"context_s": 0.00001},
        {"context_s": 0.00001, "kv_blocks": 60, "resume": "host"},
        {"context_s": 0.00001, "service": "tokens", "period_steps": 4},
        {"demotes": False},
        {"beta": 1.5},
        {"kv_blocks": None},
        {"engines": 2, "balancer": "locality"},
        {"engines": 3, "engine_speeds": (1.0, 2.0, 3.0), "balancer": "locality_bounded"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("checked")
def test_stretches_give_the_results_of_single_steps(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = workload()
    stretched, log = play(arrivals, **changes)
    monkeypatch.setattr(SimEngine, "_like_steps", lambda *_: 1)

    stepped, stepped_log = play(arrivals, **changes)

    assert [rounded(record) for record in stretched.programs] == [rounded(r) for r in stepped.programs]
    assert [(engine, event, call) for engine, (event, call, _) in log] == [
        (engine, event, call) for engine, (event, call, _) in stepped_log
    ]
    assert [totals.steps for totals in stretched.engines] == [totals.steps for totals in stepped.engines]


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.usefixtures("checked")
def test_every_program_is_played_to_its_end(policy: str) -> None:
    arrivals = workload()
    result, log = play(arrivals, policy)

    calls = sum(len(program.calls) for _, program in arrivals)
    for event in ("arrive", "finish"):
        assert len([call for _, (what, call, _) in log if what == event]) == calls
    assert sorted(record.program_id for record in result.programs) == sorted(
        p.program_id for _, p in arrivals
    )
    tokens = sum(record.output_tokens for record in result.programs)
    assert tokens == sum(max(1, call.decode_tokens) for _, program in arrivals for call in program.calls)
    starts, stops = (sum(what == event for _, (what, _, _) in log) for event in ("start", "preempt"))
    assert starts == calls + stops
    assert result.engines[0].preemptions == stops == sum(record.preemptions for record in result.programs)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (play(workload(), "boost", hint_sigma=0.5) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("changes", [{}, {"resume": "host"}, {"has_prefix_cache": False}], ids=str)
def test_every_token_that_is_not_found_is_prefilled(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts less what the cache had, and what preempted calls had computed and lost."""
    prefilled = 0
    advance = RunningBatch.advance

    def count(self: RunningBatch, stretch: Stretch, now: float) -> list[EngineCall]:
        nonlocal prefilled
        prefilled += self.prefill_tokens
        return advance(self, stretch, now)

    monkeypatch.setattr(RunningBatch, "advance", count)
    result, _ = play(workload(rate_per_s=5.0), kv_blocks=60, preemption="always", **changes)

    found = sum(record.cached_tokens for record in result.programs)
    again = sum(record.recomputed_tokens for record in result.programs)
    # The last token that a preempted call has decoded is prefilled when it resumes.
    resumed = result.engines[0].preemptions
    prompts = sum(record.prompt_tokens for record in result.programs)
    assert again > 0
    assert prompts - found + again <= prefilled <= prompts - found + again + resumed


def test_without_contention_no_policy_waits() -> None:
    lone = [(0.0, workload()[0][1])]
    results = {policy: play(lone, policy)[0].programs[0] for policy in POLICY_NAMES}
    assert {record.wait_s for record in results.values()} == {0.0}
    assert len({round(record.finish_s, 9) for record in results.values()}) == 1


def test_a_call_alone_takes_its_steps() -> None:
    """One step for each chunk of the prompt, the last of which decodes a token, and for each later one."""
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=200, decode_tokens=5)
    program = ProgramTrace(source="s", program_id="p", calls=(call,))

    result, _ = play([(1.0, program)])

    read_s = SMALL.step_time_s(0, 128) + SMALL.step_time_s(0, 72)
    assert result.programs[0].latency_s == pytest.approx(read_s + 4 * SMALL.step_time_s(1, 0))
    assert result.engines[0].steps == 6


def test_a_decoding_call_pays_for_its_context() -> None:
    """Each step reads one token more than the one before."""
    call = CallTrace(id=0, parents=(), thread="main", prefill_tokens=100, decode_tokens=5)
    arrivals = [(0.0, ProgramTrace(source="s", program_id="p", calls=(call,)))]
    plain, _ = play(arrivals)
    slow, _ = play(arrivals, context_s=0.01)
    tokens = 101 + 102 + 103 + 104
    assert slow.makespan_s - plain.makespan_s == pytest.approx(tokens * 0.01)
    assert slow.programs[0].service_s - plain.programs[0].service_s == pytest.approx(tokens * 0.01)


def test_a_later_turn_finds_its_prefix_in_the_cache() -> None:
    turns = (
        CallTrace(id=0, parents=(), thread="main", prefill_tokens=100, decode_tokens=28),
        CallTrace(
            id=1,
            parents=(0,),
            thread="main",
            prefill_tokens=160,
            decode_tokens=4,
            shared_prefix_tokens=128,
            prefix_from=0,
            gap_before_s=2.0,
        ),
    )
    arrivals = [(0.0, ProgramTrace(source="s", program_id="p", calls=turns))]

    warm, _ = play(arrivals)
    cold, _ = play(arrivals, has_prefix_cache=False)

    # The last decoded token was never computed: of 8 blocks of context, 7 are in the cache.
    assert warm.programs[0].cached_tokens == 112
    assert cold.programs[0].cached_tokens == 0
    saved_s = 112 * SMALL.prefill_s + SMALL.step_s
    assert cold.programs[0].latency_s - warm.programs[0].latency_s == pytest.approx(saved_s)
    assert warm.programs[0].path_s == pytest.approx(warm.programs[0].latency_s - 2.0)


def test_scarce_blocks_preempt_and_lose_nothing() -> None:
    arrivals = workload(rate_per_s=5.0)
    rich, _ = play(arrivals, "fcfs", kv_blocks=None)
    poor, _ = play(arrivals, "fcfs", kv_blocks=60)
    assert poor.engines[0].preemptions > rich.engines[0].preemptions == 0
    assert len(poor.programs) == len(rich.programs) == len(arrivals)
    assert poor.makespan_s > rich.makespan_s


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("policy", ["fcfs", "mlfq", "boost"])
def test_calls_that_lack_blocks_all_finish_once(policy: str) -> None:
    arrivals = workload(rate_per_s=5.0)
    simulated, log = play(arrivals, policy, kv_blocks=40, preemption="always")
    assert simulated.engines[0].preemptions > 0
    finished = [call for _, (event, call, _) in log if event == "finish"]
    assert len(finished) == len(set(finished)) == sum(len(program.calls) for _, program in arrivals)


@pytest.mark.usefixtures("checked")
def test_without_preemption_only_missing_blocks_take_a_slot() -> None:
    arrivals = workload(rate_per_s=5.0)
    free, _ = play(arrivals, kv_blocks=None)
    held, _ = play(arrivals, kv_blocks=None, preemption="never")
    scarce, log = play(arrivals, kv_blocks=60, preemption="never")
    assert free.engines[0].preemptions > held.engines[0].preemptions == 0
    assert scarce.engines[0].preemptions > 0 == scarce.engines[0].swapped_blocks
    assert len(held.programs) == len(scarce.programs) == len(arrivals)
    # The order is still the policy's.
    assert [entry for entry in log if entry[1][0] == "demotion"]


def test_bulk_swaps_cost_less_than_one_copy_per_block() -> None:
    arrivals = workload(rate_per_s=5.0)
    bulk, each = (play(arrivals, resume="swap", swap=swap)[0].engines[0] for swap in ("bulk", "per_block"))
    assert bulk.swapped_blocks > 0
    assert bulk.swap_s / bulk.swapped_blocks < each.swap_s / each.swapped_blocks


@pytest.mark.parametrize(("swap_block_s", "better"), [(0.0001, "swap"), (0.02, "recompute")])
@pytest.mark.usefixtures("checked")
def test_priced_contexts_resume_in_the_cheaper_way(swap_block_s: float, better: str) -> None:
    """Without a prefix cache each resume costs a transfer or the whole context.

    Host memory also keeps the contexts of finished calls, which the program's next calls load.
    """
    arrivals = workload(rate_per_s=5.0)
    makespan_s, moved = {}, {}
    for resume in ("swap", "recompute", "host"):
        changes = {"resume": resume, "preemption": "priced" if resume == "host" else "always"}
        result, _ = play(arrivals, swap_block_s=swap_block_s, has_prefix_cache=False, **changes)
        makespan_s[resume], moved[resume] = result.makespan_s, result.engines[0].swapped_blocks
    assert min(makespan_s, key=lambda name: makespan_s[name] + (name == "host") * 1e9) == better
    # The first few loads are made to learn what they cost.
    assert makespan_s["host"] <= 1.08 * makespan_s[better]
    assert moved["host"] > 0
    assert (moved["host"] > moved["swap"]) == (better == "swap")


@pytest.mark.parametrize("resume", ["recompute", "host"])
def test_a_price_prevents_preemptions(resume: str) -> None:
    """Where a resume costs more than a quantum, only calls past their quantum are preempted."""
    arrivals = workload(rate_per_s=5.0)
    dear: dict[str, Any] = {
        "prefill_s": 0.005,
        # A little less than to recompute a block.
        "swap_block_s": 0.07,
        "has_prefix_cache": False,
        "resume": resume,
    }
    free, priced = (
        play(arrivals, kv_blocks=None, preemption=preemption, **dear)[0].engines[0].preemptions
        for preemption in ("always", "priced")
    )
    assert priced < free


def test_cached_contexts_have_no_price() -> None:
    """With memory for all contexts, the prefix cache makes preemptions free, as in the paper."""
    arrivals = workload(rate_per_s=5.0)
    dear: dict[str, Any] = {"kv_blocks": 10_000, "prefill_s": 0.005}
    free, priced = (play(arrivals, preemption=preemption, **dear) for preemption in ("always", "priced"))
    assert free[0].engines[0].preemptions > 0
    assert free == priced


@pytest.mark.parametrize("preemption", ["always", "priced"])
@pytest.mark.parametrize("has_prefix_cache", [False, True])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_scarce_memory_costs_no_policy_half_more_steps(
    policy: str, has_prefix_cache: bool, preemption: str
) -> None:
    """All steps take equally long, so that no resume has a price in seconds, and few prompts fit at once."""
    long = CallTrace(id=0, parents=(), thread="0", prefill_tokens=400, decode_tokens=40)
    programs = [(0.1 * n, ProgramTrace(source="s", program_id=str(n), calls=(long,))) for n in range(12)]
    model = replace(
        UNIT, max_num_seqs=4, token_budget=16, kv_blocks=60, step_s=0.1, has_prefix_cache=has_prefix_cache
    )
    makespans_s = {}
    for each in ("fcfs", policy):
        scheduler = SchedulerConfig(policy=each, bounds=BOUNDS, preemption=preemption)
        makespans_s[each] = simulate(programs, SimSettings(model=model, scheduler=scheduler)).makespan_s
    assert makespans_s[policy] <= 1.5 * makespans_s["fcfs"]


@pytest.mark.parametrize("policy", ["atlas", "round_robin"])
@pytest.mark.parametrize("catches_up", [True, False])
def test_calls_with_long_prompts_do_not_preempt_each_other_forever(
    catches_up: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their prefill takes ten quanta, and the cache holds only some; the control shows the livelock."""
    if not catches_up:
        monkeypatch.setattr(Call, "has_prefill_debt", False)
        monkeypatch.setattr(victims, "has_earned", lambda *_: True)
    long = CallTrace(id=0, parents=(), thread="0", prefill_tokens=4000, decode_tokens=40)
    programs = [(0.0, ProgramTrace(source="s", program_id=str(n), calls=(long,))) for n in range(12)]
    settings = SimSettings(
        model=replace(SMALL, max_num_seqs=4, kv_blocks=700),
        scheduler=SchedulerConfig(
            policy=policy, bounds=BOUNDS, beta=1.0, preemption="always", admission="none"
        ),
    )
    decisions = 0

    def count(_engine: str, _decision: Decision) -> None:
        nonlocal decisions
        decisions += 1
        if decisions > 20_000:
            raise TimeoutError

    if catches_up:
        assert len(simulate(programs, settings, log=count).programs) == 12
    else:
        with pytest.raises(TimeoutError):
            simulate(programs, settings, log=count)


def test_a_call_that_can_never_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"kv_blocks is 4: call 0.\d with \d+ tokens does not fit"):
        play(workload(), kv_blocks=4)


def test_arrivals_must_be_in_order() -> None:
    (first, program), *_ = workload()
    with pytest.raises(ValueError, match=r"arrivals must not go back in time, as from 9.0 s to 0.0 s"):
        play([(9.0, program), (first, program)])


def equal_programs(count: int) -> list[ProgramTrace]:
    """Programs of two calls of a second each on UNIT, with no time between."""
    calls = tuple(
        CallTrace(id=id_, parents=parents, thread="main", prefill_tokens=1, decode_tokens=1)
        for id_, parents in ((0, ()), (1, (0,)))
    )
    return [ProgramTrace(source="s", program_id=str(index), calls=calls) for index in range(count)]


def test_in_a_closed_loop_each_end_begins_the_next_program() -> None:
    """The fifth begins where the third ends; none follows the fourth, so the full loop ends with it."""
    settings = SimSettings(model=replace(UNIT, max_num_seqs=2), scheduler=SchedulerConfig(policy="fcfs"))
    result = simulate_closed(equal_programs(5), 2, settings)
    assert [(record.arrival_s, record.finish_s) for record in result.programs] == [
        (0.0, 2.0),
        (0.0, 2.0),
        (2.0, 4.0),
        (2.0, 4.0),
        (4.0, 6.0),
    ]
    assert (result.peak_programs, result.full_loop) == (2, FullLoop(4.0, 8, 4))
    assert simulate([(0.0, program) for program in equal_programs(2)], settings).full_loop is None


def test_two_engines_share_the_work() -> None:
    arrivals = workload(rate_per_s=5.0)
    one, _ = play(arrivals)
    two, _ = play(arrivals, engines=2, balancer="least_used")
    assert two.makespan_s < one.makespan_s
    assert min(engine.steps for engine in two.engines) > 0


def test_an_engine_of_its_own_keeps_a_program_together() -> None:
    arrivals = workload()
    _, log = play(arrivals, engines=3, balancer="locality")
    apart = play(arrivals, engines=3, balancer="round_robin")[0]
    assert {engine for engine, _ in log} == {"engine0", "engine1", "engine2"}
    assert sum(record.cached_tokens for record in apart.programs) < sum(
        record.cached_tokens for record in play(arrivals, engines=1)[0].programs
    )


def test_an_engine_of_twice_the_speed_takes_half_the_time() -> None:
    arrivals = [(0.0, workload()[0][1])]
    plain, _ = play(arrivals)
    fast, _ = play(arrivals, engine_speeds=(2.0,))

    assert fast.makespan_s == pytest.approx(plain.makespan_s / 2)
    assert fast.engines[0].steps == plain.engines[0].steps


@pytest.mark.parametrize("balancer", BALANCER_NAMES)
def test_every_balancer_plays_every_program_on_engines_of_different_speed(balancer: str) -> None:
    arrivals = workload(rate_per_s=5.0)
    result, log = play(arrivals, engines=3, engine_speeds=(1.0, 1.0, 2.0), balancer=balancer)

    assert len(result.programs) == len(arrivals)
    assert {engine for engine, _ in log} == {"engine0", "engine1", "engine2"}


def test_bounded_locality_has_more_cache_hits_than_round_robin() -> None:
    """And its programs end earlier for it, the more so on engines of different speed."""
    arrivals = workload(rate_per_s=5.0)
    for speeds in ((), (1.0, 1.0, 2.0)):
        runs = [
            play(arrivals, engines=3, engine_speeds=speeds, balancer=name)[0]
            for name in ("round_robin", "locality_bounded")
        ]
        cached = [sum(record.cached_tokens for record in run.programs) for run in runs]
        latency_s = [sum(record.latency_s for record in run.programs) for run in runs]
        assert cached[1] > cached[0]
        assert latency_s[1] < latency_s[0]


def test_programs_are_drawn_as_they_arrive() -> None:
    """Memory grows with live programs only: in sequence, there is one at a time."""
    program = workload()[0][1]
    alive: list[int] = []
    drawn = 0

    def endless() -> object:
        nonlocal drawn
        for number in range(30):
            drawn += 1
            yield (number * 1e4, program)

    settings = SimSettings(model=UNIT, scheduler=SchedulerConfig(policy="fcfs"))
    result = simulate(endless(), settings, on_program=lambda _: alive.append(drawn))  # type: ignore[arg-type]

    assert result.peak_programs == 1
    assert alive == [min(30, number + 2) for number in range(30)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engines", 0),
        ("engine_speeds", (1.0, 2.0)),
        ("engine_speeds", (0.0,)),
        ("hint_sigma", -1.0),
        ("end_delay_s", -1.0),
        ("idle_s", 0.0),
        ("balancer", "best"),
    ],
)
def test_a_bad_setting_names_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        SimSettings(model=UNIT, scheduler=SchedulerConfig(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("token_budget", 3),
        ("step_s", -1.0),
        ("prefill_s", math.nan),
        ("context_s", -1.0),
        ("block_bytes", -1),
        ("kv_blocks", 0),
        ("resume", "drop"),
        ("swap", "never"),
    ],
)
def test_a_bad_parameter_names_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        replace(SMALL, **{field: value})  # type: ignore[arg-type]


def test_a_share_of_the_memory_is_whole_blocks() -> None:
    assert SMALL.with_kv(0.25) == replace(SMALL, kv_blocks=40)
    assert replace(SMALL, kv_blocks=7).with_kv(0.5).kv_blocks == 3
    assert UNIT.with_kv(0.5) is UNIT
    with pytest.raises(ValueError, match="kv_blocks must"):
        SMALL.with_kv(0.001)


def test_calls_of_one_prompt_share_its_blocks_while_they_run() -> None:
    """Three answers to one prompt of six blocks: it is prefilled once."""
    root = CallTrace(id=0, parents=(), thread="0", prefill_tokens=100, decode_tokens=20)
    others = tuple(
        CallTrace(
            id=number,
            parents=(),
            thread=str(number),
            prefill_tokens=100,
            decode_tokens=20,
            shared_prefix_tokens=100,
            prefix_from=0,
        )
        for number in (1, 2)
    )
    result, _ = play([(0.0, ProgramTrace(source="s", program_id="p", calls=(root, *others)))])
    assert result.programs[0].cached_tokens == 2 * 96


def test_programs_of_one_class_share_their_system_prefix() -> None:
    """The second one finds the tool list of the first, which has ended, unless prefixes are private."""
    call = CallTrace(id=0, parents=(), thread="0", prefill_tokens=100, decode_tokens=4)
    first, second = (
        ProgramTrace(source="s", program_id=name, calls=(call,), system_prefix_tokens=80) for name in "pq"
    )
    other = replace(second, system_prefix_tokens=81)
    for programs, changes, cached_tokens in (
        ((first, second), {}, 80),
        ((first, second), {"shares_prefixes": False}, 0),
        ((first, other), {}, 0),
        ((first, second), {"engines": 2, "balancer": "round_robin"}, 0),
    ):
        result, _ = play([(0.0, programs[0]), (9.0, programs[1])], **changes)
        assert [record.cached_tokens for record in result.programs] == [0, cached_tokens]


@pytest.mark.parametrize("changes", [{}, {"kv_blocks": 60}, {"resume": "host"}], ids=str)
@pytest.mark.usefixtures("checked")
def test_stretches_are_exact_with_shared_prefixes(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = [
        (at_s, replace(program, source="s", system_prefix_tokens=min(48, program.calls[0].prefill_tokens)))
        for at_s, program in workload()
    ]
    stretched, log = play(arrivals, **changes)
    monkeypatch.setattr(SimEngine, "_like_steps", lambda *_: 1)

    stepped, stepped_log = play(arrivals, **changes)

    assert [rounded(record) for record in stretched.programs] == [rounded(r) for r in stepped.programs]
    assert [entry[:2] for _, entry in log] == [entry[:2] for _, entry in stepped_log]
    assert sum(record.cached_tokens for record in stretched.programs) > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("0", 0), ("1", 0), ("2", 0)]),
        ({"end_delay_s": 5.0}, [("0", 5), ("1", 5)]),
        ({"end_delay_s": None}, []),
        ({"end_delay_s": None, "idle_s": 30.0}, [("0", 30), ("1", 30)]),
        ({"end_delay_s": 40.0, "idle_s": 30.0}, [("0", 30), ("1", 30)]),
        # Shorter than the gap before the second call of program 1, which so ends twice.
        ({"idle_s": 10.0}, [("0", 0), ("1", -10), ("1", 0), ("2", 0)]),
    ],
    ids=str,
)
def test_the_scheduler_may_learn_of_an_end_late_or_by_silence(
    changes: dict[str, Any], expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are seconds after the program's end; a run is over with its last program."""
    announced: list[tuple[str, float]] = []
    end_program = Machine.end_program

    def note(self: Machine, program_id: str, now: float) -> None:
        announced.append((program_id, now))
        end_program(self, program_id, now)

    monkeypatch.setattr(Machine, "end_program", note)
    call = CallTrace(id=0, parents=(), thread="0", prefill_tokens=10, decode_tokens=10)
    later = replace(call, id=1, parents=(0,), gap_before_s=20.0)
    calls = [(call,), (call, later), (call,)]
    programs = [ProgramTrace(source="s", program_id=str(number), calls=calls[number]) for number in range(3)]

    result, _ = play(list(zip((0.0, 0.0, 100.0), programs, strict=True)), **changes)

    ends_s = {record.program_id: record.finish_s for record in result.programs}
    found = [(name, round(at_s - ends_s[name])) for name, at_s in announced]
    assert found == expected
    assert result.makespan_s == max(ends_s.values())
