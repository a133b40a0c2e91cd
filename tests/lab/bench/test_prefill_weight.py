"""The weight of prefill is that of the engine, whatever else the machine does."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import pytest

from autellix_lab.bench.calibrate import CalibrationError
from autellix_lab.bench.prefill_weight import (
    LEAST_THREES,
    LONG_TOKENS,
    PROBE,
    THREES,
    prefilled_tokens_of_step,
    probe_programs,
)
from autellix_lab.bench.results import CallResult
from autellix_lab.workload.trace import ProgramTrace

SLOTS = 4
STEP_S, TOKEN_S = 0.007, 0.000015
CACHED = 16
"""Tokens of each prompt that are cached: those with which all prompts begin."""

Slowness = Callable[[float], float]
"""How much longer the machine takes at a time (s), for all that it does."""


def played(
    programs: Sequence[ProgramTrace], slowness: Slowness, *, prefill_slowness: float = 1.0, seed: int = 0
) -> list[CallResult]:
    """Return what an engine would answer: each call waits for the step under way, and then takes its own."""
    rng = random.Random(seed)
    found = []
    for program in programs:
        now_s = 0.0
        for call in program.calls:
            computed = call.prefill_tokens - CACHED
            steps = rng.random() + call.decode_tokens
            usual_s = steps * STEP_S + computed * TOKEN_S * prefill_slowness + 0.004
            end_s = now_s + usual_s * slowness(now_s)
            found.append(
                CallResult(
                    program=program.program_id,
                    call=call.id,
                    thread=call.thread,
                    submit_s=now_s,
                    finish_s=end_s,
                    prompt_tokens=call.prefill_tokens,
                    cached_tokens=CACHED,
                    output_tokens=call.decode_tokens,
                )
            )
            now_s = end_s
    return found


def disturbed(seed: int) -> Slowness:
    """Return a machine with other work in a fifth of its time, which makes it three times as slow."""
    rng = random.Random(seed)
    return lambda _: 3.0 if rng.random() < 0.2 else 1.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "slowness",
    [
        pytest.param(lambda _: lambda _: 1.0, id="idle"),
        pytest.param(lambda _: lambda _: 2.5, id="busy all the time"),
        pytest.param(disturbed, id="busy now and then"),
        pytest.param(lambda _: lambda now_s: 1.0 if now_s < 2.0 else 2.0, id="busy from then on"),
    ],
)
def test_other_work_changes_the_weight_little(slowness: Callable[[int], Slowness], seed: int) -> None:
    found = prefilled_tokens_of_step(played(probe_programs(SLOTS), slowness(seed), seed=seed))
    assert found == pytest.approx(STEP_S / TOKEN_S, rel=0.15)


def test_what_slows_prefill_alone_changes_the_weight() -> None:
    """As other work does that takes one of two cores: prefill uses both, the rest of a step hardly."""
    found = prefilled_tokens_of_step(played(probe_programs(SLOTS), lambda _: 1.0, prefill_slowness=3.0))
    assert found == pytest.approx(STEP_S / TOKEN_S / 3, rel=0.1)


def test_the_probe_decodes_beside_a_full_batch() -> None:
    """Which lasts longer, and whose calls are short, so that they fit into a scarce KV memory."""
    probe, *batch = probe_programs(SLOTS)
    assert probe.program_id == PROBE
    assert len(probe.calls) == 3 * THREES
    assert max(call.prefill_tokens for call in probe.calls) == LONG_TOKENS
    assert len(batch) == SLOTS - 1
    assert all(program.decode_tokens > 1.5 * probe.decode_tokens for program in batch)
    assert max(call.context_tokens for program in batch for call in program.calls) <= 100
    assert len(probe_programs(1)) == 1


def cut(results: Sequence[CallResult], threes: int) -> list[CallResult]:
    """Return the results of a batch that ends with so many threes of the probe."""
    probe = [result for result in results if result.program == PROBE]
    end_s = probe[3 * threes - 1].finish_s
    return [*probe, *(result for result in results if result.program != PROBE and result.finish_s <= end_s)]


def test_threes_beside_no_full_batch_do_not_count() -> None:
    results = played(probe_programs(SLOTS), lambda _: 1.0)
    end_s = max(result.finish_s for result in cut(results, 15) if result.program != PROBE)
    late = [
        dataclasses.replace(result, finish_s=result.finish_s + 9.0) if result.submit_s > end_s else result
        for result in cut(results, 15)
    ]
    assert prefilled_tokens_of_step(late) == pytest.approx(STEP_S / TOKEN_S, rel=0.2)
    with pytest.raises(CalibrationError, match="beside a full batch"):
        prefilled_tokens_of_step(cut(results, LEAST_THREES))


def test_lost_calls_leave_no_weight() -> None:
    results = played(probe_programs(SLOTS), lambda _: 1.0)
    with pytest.raises(CalibrationError, match=r"^1 of \d+ probe calls were lost: gone"):
        prefilled_tokens_of_step([dataclasses.replace(results[0], error="gone"), *results[1:]])


def test_prefill_that_takes_no_time_does_not_count() -> None:
    results = played(probe_programs(SLOTS), lambda _: 1.0, prefill_slowness=0.0)
    instant = [dataclasses.replace(result, finish_s=result.submit_s + 1.0) for result in results]
    assert prefilled_tokens_of_step(instant) == math.inf
