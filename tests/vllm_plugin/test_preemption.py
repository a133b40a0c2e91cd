"""Preemptions are priced by the engine's own steps, or by our connector."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autellix_backend.core.arrival import Arrival
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import PreemptionCosts, Resume, ResumeKind
from autellix_backend.vllm_plugin.preemption import PreemptionPrices


class Connector:
    """The part of our connector that is used."""

    def __init__(self, price_s: float | None) -> None:
        self.costs = PreemptionCosts()
        self.asked: list[int] = []
        self._price_s = price_s

    def resume_of(self, request: object, full_block_tokens: int) -> Resume | None:
        self.asked.append(full_block_tokens)
        if self._price_s is None:
            return None
        return Resume(kind=ResumeKind.LOAD, seconds=self._price_s, prefill_s=0.0)


REQUEST = SimpleNamespace(request_id="c", num_computed_tokens=70)


def prices_of(connector: object, quantum_s: float = 1.0, since_s: float = 0.0) -> PreemptionPrices:
    """Prices for one running call with this much of its quantum left."""
    machine = Machine(SchedulerConfig(policy="plas", bounds=(10.0,)))
    machine.arrive(Arrival("c", "p"), since_s)
    machine.start("c", since_s)
    machine.charge("c", 10.0 - quantum_s, since_s)
    return PreemptionPrices(connector, machine, 32)


def observe_steps(prices: PreemptionPrices, token_s: float) -> None:
    """Observe decode steps, and steps with prefill."""
    for number in range(20):
        reads = 100 if number % 2 else 0
        prices._machine.observe_step(reads, 0.01 + reads * token_s, prefilled=reads)


@pytest.mark.parametrize("connector", [None, object()])
@pytest.mark.parametrize(
    ("quantum_s", "running", "expected"), [(0.08, 1, True), (0.06, 1, False), (0.08, 2, False)]
)
def test_without_our_connector_everything_is_recomputed(
    connector: object, quantum_s: float, running: int, expected: bool
) -> None:
    """Neither without a connector nor with a stock one: 70 tokens at 1 ms, for each that runs."""
    prices = prices_of(connector, quantum_s)
    observe_steps(prices, 0.001)
    assert prices.pays(REQUEST, 10.0, running=running) is expected


def test_an_engine_without_measurements_prevents_no_preemption() -> None:
    """Its first calls are preempted by the policy alone."""
    assert prices_of(None, 0.001).pays(REQUEST, 0.0, running=4)


def test_a_price_above_the_gain_prevents_preemption() -> None:
    """The gain is the rest of the quantum; only full blocks are stored."""
    connector = Connector(0.5)
    prices = prices_of(connector, 0.4)
    assert not prices.pays(REQUEST, 10.0, running=1)
    assert prices_of(connector, 0.6).pays(REQUEST, 10.0, running=3)
    assert connector.asked == [64, 64]


def test_a_call_that_has_just_resumed_keeps_its_slot() -> None:
    """Until it has run for as long as its resume takes."""
    prices = prices_of(Connector(0.5), 9.0, since_s=9.0)
    assert not prices.pays(REQUEST, 9.3, running=1)
    assert prices.pays(REQUEST, 9.6, running=1)


def test_past_its_quantum_a_calls_remaining_time_is_unbounded() -> None:
    """So preempting it pays at any price."""
    assert prices_of(Connector(0.5), -0.1).pays(REQUEST, 10.0, running=1)


def test_steps_determine_the_price_of_prefill() -> None:
    """Single tokens are decode, not prefill."""
    connector = Connector(None)
    prices = prices_of(connector)
    observe_steps(prices, 0.001)
    price_s = connector.costs.recompute_s(50)
    assert price_s is not None
    assert abs(price_s - 0.05) < 1e-9
