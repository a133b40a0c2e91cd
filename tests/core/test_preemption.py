"""The prices of a resume, and when a preemption pays."""

from __future__ import annotations

import math
import random

import pytest
from tests.core.calls import make_call

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.call import Call
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import (
    CostLine,
    PreemptionCosts,
    Resume,
    ResumeKind,
    StepCosts,
    fit_together,
    has_earned,
    preemption_pays,
)
from autellix_backend.core.statistics import MIN_SAMPLES

TOKEN_BYTES = 131_072.0


def costs_of(load_fixed_s: float, load_byte_s: float, step_s: float, token_s: float) -> PreemptionCosts:
    """Prices learned from an engine that keeps exactly to its lines."""
    costs = PreemptionCosts()
    for number in range(1, 40):
        moved = number * 7 % 13 << 20
        costs.observe_load(moved, load_fixed_s + load_byte_s * moved)
        costs.prefill.observe(number % 5 * 64, step_s + token_s * (number % 5 * 64))
    return costs


def test_a_linear_cost_is_fitted() -> None:
    """Samples on a line give back its fixed part and its slope, far beyond and far below them."""
    line = CostLine()
    for number in range(1, 30):
        line.observe(number << 30, 0.25 + number * 0.5)
    assert line.estimate(0) == pytest.approx(0.25)
    assert line.estimate(100 << 30) == pytest.approx(50.25)


def test_the_fit_tolerates_noise() -> None:
    """Noise of a tenth moves the price by a few hundredths."""
    generator = random.Random(5)
    line = CostLine()
    for _ in range(2000):
        amount = generator.uniform(1e6, 1e8)
        line.observe(amount, (0.002 + amount * 1e-9) * generator.uniform(0.9, 1.1))
    assert line.estimate(5e7) == pytest.approx(0.052, rel=0.05)


def test_the_fit_follows_a_changing_machine() -> None:
    """Old samples fade: after a hundred slower ones, the price is the slower one."""
    line = CostLine()
    for speed in (1.0, 3.0):
        for number in range(100):
            line.observe(1 + number % 4, speed * (1 + number % 4))
    assert line.estimate(2) == pytest.approx(6.0, rel=0.2)


def test_samples_of_one_amount_make_a_price_per_unit() -> None:
    """One amount cannot determine a fixed cost, so it is zero."""
    line = CostLine()
    for _ in range(MIN_SAMPLES):
        line.observe(10, 2.0)
    assert line.estimate(10) == pytest.approx(2.0)
    assert line.estimate(20) == pytest.approx(4.0)


def test_a_negative_slope_becomes_zero() -> None:
    """Larger amounts that took less, by chance, never make a negative price."""
    line = CostLine()
    for number in range(1, 20):
        line.observe(number, 20.0 - number)
    assert line.slope == 0.0
    assert line.estimate(1000) > 0.0


def test_full_steps_determine_the_prefill_speed() -> None:
    """Under load all steps prefill the rest of the budget: the fewer calls decode, the more tokens."""
    costs = PreemptionCosts()
    for _ in range(5):
        costs.prefill.observe(0, 0.014)
    for number in range(300):
        writing = 10 + number % 6
        costs.prefill.observe(2048 - writing, 0.01 + 0.0003 * writing + 0.0001 * (2048 - writing))
    assert costs.recompute_s(1000) == pytest.approx(0.1, rel=0.02)


def test_prefill_that_adds_no_time_has_no_price() -> None:
    """Prefill that does not lengthen steps has no price."""
    costs = PreemptionCosts()
    for number in range(40):
        costs.prefill.observe(number % 2 * 64, 0.01)
    assert costs.recompute_s(1000) is None


def test_prices_are_unknown_at_first() -> None:
    """There is no price before enough samples."""
    costs = PreemptionCosts()
    for _ in range(MIN_SAMPLES - 1):
        costs.observe_load(1 << 20, 0.1)
        costs.prefill.observe(64, 0.1)
    assert (costs.load_s(1.0), costs.recompute_s(1.0)) == (None, None)
    assert costs.resume(1000, stored_tokens=960, token_bytes=TOKEN_BYTES) is None
    assert costs.resume(1000, stored_tokens=0, token_bytes=TOKEN_BYTES) is None


def test_long_contexts_are_loaded_and_short_ones_recomputed() -> None:
    """A transfer's fixed cost makes it dearer for short contexts and cheaper for long ones."""
    costs = costs_of(load_fixed_s=0.01, load_byte_s=2e-11, step_s=0.02, token_s=5e-5)
    short = costs.resume(64, stored_tokens=64, token_bytes=TOKEN_BYTES)
    long = costs.resume(4096, stored_tokens=4080, token_bytes=TOKEN_BYTES)
    assert short is not None
    assert short.kind is ResumeKind.RECOMPUTE
    assert short.seconds == pytest.approx(64 * 5e-5)
    assert long is not None
    assert long.kind is ResumeKind.LOAD
    assert long.seconds == pytest.approx(0.01 + 4080 * TOKEN_BYTES * 2e-11 + 16 * 5e-5)
    assert long.prefill_s == pytest.approx(16 * 5e-5)


def test_the_part_of_a_context_that_would_be_loaded() -> None:
    """Nothing of a short one, and of a long one what is stored; an unknown price prevents no load."""
    costs = costs_of(load_fixed_s=0.01, load_byte_s=2e-11, step_s=0.02, token_s=5e-5)
    assert costs.load_of(64, stored_tokens=64, token_bytes=TOKEN_BYTES) == (0.0, 0.0)
    assert costs.load_of(4096, stored_tokens=0, token_bytes=TOKEN_BYTES) == (0.0, 0.0)
    share, seconds = costs.load_of(4096, stored_tokens=3072, token_bytes=TOKEN_BYTES)
    assert share == 0.75
    assert seconds == pytest.approx(0.01 + 3072 * TOKEN_BYTES * 2e-11)
    # What is shared with others may be kept beside the own part.
    assert costs.load_of(4096, stored_tokens=5000, token_bytes=TOKEN_BYTES)[0] == 1.0
    assert PreemptionCosts().load_of(100, stored_tokens=50, token_bytes=1.0) == (0.5, 0.0)
    assert PreemptionCosts().load_of(0, stored_tokens=50, token_bytes=1.0) == (0.0, 0.0)


def test_unstored_contexts_are_recomputed() -> None:
    """Without stored tokens there is only recomputing, however dear."""
    costs = costs_of(load_fixed_s=0.0, load_byte_s=1e-12, step_s=0.0, token_s=1.0)
    found = costs.resume(100, stored_tokens=0, token_bytes=1.0)
    assert found is not None
    assert found.kind is ResumeKind.RECOMPUTE
    assert found.seconds == pytest.approx(100.0)
    assert found.prefill_s == pytest.approx(100.0)


def test_a_load_of_unknown_price_is_tried() -> None:
    """Stored contexts are loaded at first; otherwise the price would never be learned."""
    costs = PreemptionCosts()
    for number in range(MIN_SAMPLES + 1):
        costs.prefill.observe(number, 0.1 * number)
    assert costs.resume(100, stored_tokens=64, token_bytes=1.0) is None
    assert costs.resume(100, stored_tokens=0, token_bytes=1.0) is not None


def test_a_known_load_is_used_while_the_prefill_price_is_unknown() -> None:
    """One price is enough to choose its way."""
    costs = PreemptionCosts()
    for _ in range(MIN_SAMPLES):
        costs.observe_load(100, 1.0)
    expected = Resume(kind=ResumeKind.LOAD, seconds=1.0, prefill_s=0.0)
    assert costs.resume(50, stored_tokens=50, token_bytes=2.0) == expected


def test_all_running_calls_wait_for_prefill_steps() -> None:
    """A load delays one call, a prefill step every running call."""
    resume = Resume(kind=ResumeKind.LOAD, seconds=0.5, prefill_s=0.2)
    assert resume.cost_s(1) == pytest.approx(0.5)
    assert resume.cost_s(4) == pytest.approx(0.3 + 4 * 0.2)


@pytest.mark.parametrize(("room", "expected"), [(6, True), (5, False), (math.inf, True)])
def test_needs_fit_together_or_not(room: float, expected: bool) -> None:
    """An exact fit fits."""
    assert fit_together(iter((1, 2, 3)), room) is expected


def test_the_sum_stops_at_the_first_need_that_does_not_fit() -> None:
    """Thousands may wait: once the room is exceeded, the rest is not evaluated."""
    needs = iter((4, 5, 6, 7))
    assert not fit_together(needs, 8)
    assert next(needs) == 6


def running_call(quantum_s: float) -> Call:
    """A call that got its slot at second 4."""
    return make_call(running_since_s=4.0, quantum_s=quantum_s)


@pytest.mark.parametrize(
    ("quantum_s", "now", "running", "expected"),
    [
        (1.0, 9.0, 1, True),
        (0.4, 9.0, 1, False),
        (1.0, 4.4, 1, False),
        (-0.1, 9.0, 1, True),
        (1.0, 9.0, 3, False),
        (2.0, 9.0, 3, True),
    ],
)
def test_a_preemption_gains_the_rest_of_the_quantum(
    quantum_s: float, now: float, running: int, expected: bool
) -> None:
    """Or any time past the quantum; and a resumed call keeps its slot for as long as its resume took."""
    resume = Resume(kind=ResumeKind.RECOMPUTE, seconds=0.5, prefill_s=0.5)
    assert preemption_pays(running_call(quantum_s), now, resume, running=running) is expected


def test_an_unknown_price_prevents_no_preemption() -> None:
    """An engine without measurements follows the policy."""
    assert preemption_pays(running_call(0.1), 4.0, None, running=4)


def test_a_negative_fixed_cost_becomes_zero() -> None:
    line = CostLine()
    for number in range(20):
        line.observe(1.0 + number % 2, 10.0 * (number % 2))
    # The fitted line would cost less than nothing at small amounts.
    assert line.estimate(0.0) == 0.0
    assert 0.0 < line.slope < 10.0


def test_an_empty_transfer_costs_nothing() -> None:
    assert PreemptionCosts().load_s(0.0) == 0.0


@pytest.mark.parametrize(
    ("tokens", "running", "expected"),
    [(0, 4, 0.0), (1, 1, 1.0), (100, 1, 7.0), (100, 4, 7.0), (100, 20, 20.0)],
)
def test_a_resume_costs_steps_of_its_call_or_of_all(tokens: int, running: int, expected: float) -> None:
    """100 tokens take 7 chunks of 16, and a whole step of the engine: one of each running call."""
    assert StepCosts(budget=100, chunk=16).of(tokens, running) == expected


def play_thief(seed: int) -> int:
    """Take the slot of a random call whenever that is allowed; return how often it was."""
    generator = random.Random(seed)
    chunk = generator.choice([1, 8, 64])
    prompt, output = generator.randrange(1, 400), generator.randrange(1, 400)
    costs = StepCosts(budget=4 * chunk, chunk=chunk)
    running = generator.choice([1, 4, 9])
    machine = Machine(SchedulerConfig(policy="plas"))
    call = machine.arrive(Arrival("c", "p"), 0.0)
    computed = steps = preemptions = lost = 0
    while computed < prompt + output:
        if not call.is_running:
            machine.start("c", float(steps))
            if call.reached_tokens:
                call.lose(call.reached_tokens, costs.of(call.reached_tokens, running))
        known = max(prompt, call.reached_tokens)
        tokens = min(chunk, known - computed) if computed < known else 1
        machine.charge("c", 1.0, float(steps), is_prefill=tokens > 1, tokens=tokens)
        computed, steps = computed + tokens, steps + 1
        if has_earned(call, costs.of(computed, running)) and generator.random() < 0.9:
            machine.preempt("c", float(steps), computed_tokens=computed)
            lost, preemptions, computed = lost + computed, preemptions + 1, 0
    alone = -(-prompt // chunk) + output
    assert steps <= 1.5 * alone
    # Of the token budget, as much as its own share of each step.
    assert running * lost / costs.budget <= 0.5 * alone
    return preemptions


def test_preemptions_add_at_most_half_to_the_steps_of_a_call() -> None:
    """However often others want its slot, and although it loses its whole context each time."""
    assert sum(map(play_thief, range(300))) > 300
