"""The price list of a simulated engine: loads, and calls that may be preempted."""

from __future__ import annotations

import pytest

from autellix_backend.core.call import Call
from autellix_backend.core.statistics import MIN_SAMPLES, PrefillCost
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.resume_prices import ResumePrices
from autellix_lab.workload.trace import CallTrace

BLOCK_TOKENS = 16
READ_TOKEN_S = 0.001


def prices_of(load_block_s: float, *, has_host: bool = True) -> ResumePrices:
    """A list that has seen steps of both kinds and loads of several sizes."""
    prices, prefill = ResumePrices(BLOCK_TOKENS, has_host=has_host), PrefillCost()
    prices.use_prefill_cost(prefill)
    for number in range(1, 2 * MIN_SAMPLES):
        tokens = 64 * (number % 3)
        prefill.observe(tokens, 0.01 + READ_TOKEN_S * tokens)
        prices.observe_load(number, load_block_s * number)
    return prices


def call_of(*, computed: int, ran_s: float = 10.0, quantum_s: float = 10.0) -> EngineCall:
    """A call with a context of 100 tokens and the first of its answer."""
    trace = CallTrace(id=0, parents=(), thread="0", prefill_tokens=100, decode_tokens=20)
    call = EngineCall("c", "p", trace, parents=())
    call.computed, call.generated = computed, 1
    call.state = Call(
        call_id="c",
        program_id="p",
        thread_id="0",
        arrival_s=0.0,
        inherited_service_s=0.0,
        is_running=True,
        waiting_since_s=0.0,
        running_since_s=20.0 - ran_s,
        quantum_s=quantum_s,
    )
    return call


@pytest.mark.parametrize(("load_block_s", "expected"), [(0.001, 64), (0.1, 0)])
def test_stored_contexts_are_loaded_if_that_is_cheaper(load_block_s: float, expected: int) -> None:
    """Of 96 stored tokens the cache has 32; prefilling a block takes 16 ms."""
    assert prices_of(load_block_s).tokens_to_load(call_of(computed=0), 32, 64) == expected


def test_without_a_price_contexts_are_loaded() -> None:
    """So it learns one."""
    assert ResumePrices(BLOCK_TOKENS, has_host=True).tokens_to_load(call_of(computed=0), 0, 96) == 96


@pytest.mark.parametrize(
    ("load_block_s", "ran_s", "quantum_s", "expected"),
    [
        (0.001, 10.0, 10.0, True),
        (0.001, 0.005, 10.0, False),
        (0.001, 10.0, 0.005, False),
        (9.0, 10.0, 0.09, False),
        (9.0, 10.0, 0.11, True),
    ],
)
def test_a_preemption_costs_the_cheaper_resume(
    load_block_s: float, ran_s: float, quantum_s: float, expected: bool
) -> None:
    """Loading six blocks and prefilling 4 tokens takes 10 ms; prefilling all 100, 100 ms."""
    call = call_of(computed=100, ran_s=ran_s, quantum_s=quantum_s)
    assert prices_of(load_block_s).preemption_pays(call, 20.0, running=1) is expected


@pytest.mark.parametrize(("quantum_s", "running", "expected"), [(0.11, 1, True), (0.11, 2, False)])
def test_without_host_memory_everything_is_recomputed(quantum_s: float, running: int, expected: bool) -> None:
    """Prefilling all 100 tokens delays each running call by 100 ms, however cheap loads would be."""
    call = call_of(computed=100, quantum_s=quantum_s)
    assert prices_of(0.001, has_host=False).preemption_pays(call, 20.0, running=running) is expected
