"""What holds for every baseline, on random programs."""

from __future__ import annotations

import random

import pytest

from autellix_backend.core.config import SchedulerConfig
from autellix_lab.sim.baselines import BASELINE_NAMES
from autellix_lab.sim.engine import Decision, SimEngine
from autellix_lab.sim.model import EngineModel
from autellix_lab.sim.results import SimResult
from autellix_lab.sim.simulation import SimSettings, simulate
from autellix_lab.workload.trace import CallTrace, ProgramTrace

BLOCK, KV_BLOCKS = 16, 40
MODEL = EngineModel(max_num_seqs=4, token_budget=64, step_s=0.01, kv_blocks=KV_BLOCKS, block_tokens=BLOCK)
FCFS = SchedulerConfig(policy="fcfs")


def random_program(rng: random.Random, number: int) -> ProgramTrace:
    """A program of up to eight calls with tools between them; some run in parallel."""
    calls: list[CallTrace] = []
    tokens = rng.randint(1, 150)
    for index in range(rng.randint(1, 8)):
        parent = None if not index else rng.randint(max(0, index - 2), index - 1)
        shared = 0 if parent is None else calls[parent].prefill_tokens
        calls.append(
            CallTrace(
                id=index,
                parents=() if parent is None else (parent,),
                thread="0",
                prefill_tokens=min(shared + tokens, 500),
                decode_tokens=rng.randint(1, 80),
                shared_prefix_tokens=shared,
                prefix_from=parent,
                gap_before_s=rng.choice((0.0, 0.0, 0.2, 3.0)),
            )
        )
        tokens = rng.randint(1, 40)
    return ProgramTrace(source=rng.choice("ab"), program_id=str(number), calls=tuple(calls))


def play(baseline: str, seed: int, **fields: float | None) -> tuple[SimResult, list[tuple[str, Decision]]]:
    rng = random.Random(seed)
    now, arrivals = 0.0, []
    for number in range(25):
        now += rng.expovariate(2.0)
        arrivals.append((now, random_program(rng, number)))
    settings = SimSettings(model=MODEL, scheduler=FCFS, baseline=baseline, **fields)  # type: ignore[arg-type]
    log: list[tuple[str, Decision]] = []
    result = simulate(arrivals, settings, log=lambda engine, decision: log.append((engine, decision)))
    return result, log


@pytest.mark.parametrize("baseline", BASELINE_NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_every_program_ends_and_no_block_is_lost(
    baseline: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: set[SimEngine] = set()
    begin = SimEngine.begin

    def checked(engine: SimEngine, now: float) -> float | None:
        engines.add(engine)
        end_s = begin(engine, now)
        engine.check()
        return end_s

    monkeypatch.setattr(SimEngine, "begin", checked)
    result, _ = play(baseline, seed)
    (engine,) = engines
    assert len(result.programs) == 25
    assert engine.blocks.kv.available == KV_BLOCKS


@pytest.mark.parametrize("baseline", BASELINE_NAMES)
def test_programs_end_where_their_ends_are_not_announced(baseline: str) -> None:
    result, _ = play(baseline, 1, end_delay_s=None, idle_s=2.5)
    assert len(result.programs) == 25


@pytest.mark.parametrize("baseline", BASELINE_NAMES)
def test_equal_runs_make_equal_decisions(baseline: str) -> None:
    assert play(baseline, 2) == play(baseline, 2)


def test_baselines_decide_differently() -> None:
    decisions = [play(baseline, 3)[1] for baseline in BASELINE_NAMES]
    assert all(one != other for one, other in zip(decisions, [*decisions[1:], decisions[0]], strict=True))


def test_an_engine_that_only_waits_for_a_router_is_not_busy() -> None:
    """A program larger than KV memory is resumed by ThunderAgent after half an hour."""
    calls = (CallTrace(id=0, parents=(), thread="0", prefill_tokens=600, decode_tokens=5),)
    program = ProgramTrace(source="a", program_id="0", calls=calls)
    settings = SimSettings(model=MODEL, scheduler=FCFS, baseline="thunderagent")
    result = simulate([(0.0, program)], settings)
    assert result.programs[0].finish_s > 1800
    assert result.engines[0].busy_s < 5


def test_unknown_baselines_and_several_engines_are_refused() -> None:
    with pytest.raises(ValueError, match="baseline must be one of thunderagent, continuum, llm-d, not 'x'"):
        SimSettings(model=MODEL, scheduler=FCFS, baseline="x")
    with pytest.raises(ValueError, match="continuum is simulated for one engine, not 2"):
        SimSettings(model=MODEL, scheduler=FCFS, baseline="continuum", engines=2)
