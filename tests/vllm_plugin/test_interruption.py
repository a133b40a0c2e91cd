"""Interruptions are weighed where there is a price, and free where there is none."""

from __future__ import annotations

from types import SimpleNamespace

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_backend.core.preemption import PreemptionCosts
from autellix_backend.vllm_plugin.interruption import InterruptionPrices


class Connector:
    """As much of our connector as is asked."""

    def __init__(self, price_s: float | None) -> None:
        self.costs = PreemptionCosts()
        self.asked: list[int] = []
        self._price_s = price_s

    def resume_s(self, request: object, full_block_tokens: int) -> float | None:
        self.asked.append(full_block_tokens)
        return self._price_s


REQUEST = SimpleNamespace(request_id="c", num_computed_tokens=70)


def prices_of(connector: object, quantum_s: float = 1.0, since_s: float = 0.0) -> InterruptionPrices:
    """Prices for one running call with this much of its quantum left."""
    machine = Machine(SchedulerConfig(policy="plas", bounds=(10.0,)))
    machine.arrive("c", "p", since_s)
    machine.start("c", since_s)
    machine.charge("c", 10.0 - quantum_s, since_s)
    return InterruptionPrices(connector, machine, 32)


def test_without_our_connector_nothing_has_a_price() -> None:
    """Neither without a connector nor with a stock one."""
    for connector in (None, object()):
        prices = prices_of(connector, 0.001)
        prices.observe_step({"c": 5}, 0.1)
        assert prices.is_worth(REQUEST, now=0.0)


def test_a_price_above_the_gain_stops_it() -> None:
    """The rest of the quantum is what the other would wait; full blocks alone are stored."""
    connector = Connector(0.5)
    prices = prices_of(connector, 0.4)
    assert not prices.is_worth(REQUEST, now=10.0)
    assert prices.refused == 1
    assert prices_of(connector, 0.6).is_worth(REQUEST, now=10.0)
    assert connector.asked == [64, 64]


def test_a_call_that_has_just_come_back_stays() -> None:
    """Until it has run for as long as coming back takes."""
    prices = prices_of(Connector(0.5), 9.0, since_s=9.0)
    assert not prices.is_worth(REQUEST, now=9.3)
    assert prices.is_worth(REQUEST, now=9.6)


def test_a_call_beyond_its_quantum_may_run_for_ever() -> None:
    """So interrupting it gains any price."""
    assert prices_of(Connector(0.5), -0.1).is_worth(REQUEST, now=10.0)


def test_steps_teach_the_price_of_reading() -> None:
    """Single tokens are written, not read."""
    connector = Connector(None)
    prices = prices_of(connector)
    for number in range(20):
        reads = 100 if number % 2 else 0
        prices.observe_step({"a": 1, "b": 1} | ({"c": reads} if reads else {}), 0.01 + reads * 0.001)
    price_s = connector.costs.recompute_s(50)
    assert price_s is not None
    assert abs(price_s - 0.05) < 1e-9
