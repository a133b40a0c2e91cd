"""The decoding calls of one engine, advanced lazily.

A decoding call gains one token in each step. Its tokens, blocks and charge are brought up to date only before
something reads them; its last step and the end of its quantum are forecast in heaps.
"""

from __future__ import annotations

import heapq
import math

from autellix_backend.core.machine import Machine
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.stretch import EPSILON, steps_within


class SimDecoding:
    """Advances decoding calls; `step` is the number of steps that the engine has made."""

    def __init__(self, machine: Machine, blocks: CallBlocks) -> None:
        self._machine = machine
        self._blocks = blocks
        self._calls = 0
        self._context_base = 0
        """The calls' tokens in all, less the steps made since they had them."""
        self._cost_s = 0.0
        """The charge of a call that decoded in every step so far."""
        self._finishes = _Forecasts()
        """By the step after which a call is done."""
        self._quantum_ends = _Forecasts()
        """By the cost at which a call has used up its quantum."""

    @property
    def next_finish(self) -> float:
        """The step after which the first call is done; infinity if no call decodes."""
        return self._finishes.next_at

    def steps_to_quantum_end(self, cost_s: float, growth_s: float) -> float:
        """Return how many steps, not rounded, are left until a quantum ends.

        Args:
            cost_s: of the next step.
            growth_s: how much more each later step costs.
        """
        end_at = self._quantum_ends.next_at
        return math.inf if end_at == math.inf else steps_within(end_at - self._cost_s, cost_s, growth_s)

    def context_tokens(self, step: int) -> int:
        """Return the tokens whose keys and values the next step reads."""
        return self._context_base + self._calls * step

    def start(self, call: EngineCall, step: int) -> None:
        """Add a call whose prefill is complete."""
        call.is_decoding = True
        call.epoch += 1
        self._calls += 1
        self._context_base += call.known - step
        call.since_step, call.since_cost_s = step, self._cost_s
        self._finishes.add(step + call.output_tokens - call.generated, call)
        self.forecast_quantum_end(call)
        self._blocks.kv.start_growing(step, call.computed)

    def stop(self, call: EngineCall, step: int) -> None:
        """Remove a call that is up to date."""
        self._blocks.kv.stop_growing(step, call.computed)
        self._calls -= 1
        self._context_base -= call.known - step
        call.is_decoding = False
        call.epoch += 1

    def advance(self, cost_s: float) -> None:
        """Charge every decoding call the cost of the steps just made."""
        self._cost_s += cost_s

    def end_quanta(self, step: int) -> None:
        """Bring the calls up to date that have used up their quanta."""
        for call in self._quantum_ends.due(self._cost_s + EPSILON):
            self.bring_up(call, step)
            self.forecast_quantum_end(call)

    def finished(self, step: int) -> list[EngineCall]:
        """Return the calls that are done by a step."""
        return self._finishes.due(step)

    def bring_up(self, call: EngineCall, step: int) -> None:
        """Bring a running call's tokens, blocks and charge up to date."""
        steps = step - call.since_step
        if not (call.is_decoding and steps):
            return
        assert call.state is not None
        self._blocks.grow(call, steps)
        cost_s = self._cost_s - call.since_cost_s
        # Rounding must not leave a trace of a quantum.
        if abs(call.state.quantum_s - cost_s) < EPSILON:
            cost_s = call.state.quantum_s
        self._machine.charge(call.call_id, cost_s, 0.0, tokens=steps, steps=steps)
        call.since_step, call.since_cost_s = step, self._cost_s

    def forecast_quantum_end(self, call: EngineCall) -> None:
        """Forecast when a call that is up to date will have used up its quantum."""
        state = call.state
        assert state is not None
        if state.is_quantum_binding and 0 < state.quantum_s < math.inf:
            self._quantum_ends.add(call.since_cost_s + state.quantum_s, call)


class _Forecasts:
    """Calls by the point at which something happens to them, such as their last step.

    A forecast is void once the call's epoch has changed: the call left its slot, or decodes again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, EngineCall]] = []
        self._numbers = 0

    def add(self, at: float, call: EngineCall) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (at, self._numbers, call.epoch, call))

    @property
    def next_at(self) -> float:
        while self._heap and self._heap[0][2] != self._heap[0][3].epoch:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, until: float) -> list[EngineCall]:
        """Remove and return the calls whose point has come."""
        due: list[EngineCall] = []
        while self._heap and self._heap[0][0] <= until:
            _, _, epoch, call = heapq.heappop(self._heap)
            if epoch == call.epoch:
                due.append(call)
        return due
