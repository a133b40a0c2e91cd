"""The calls of one engine that write: what happens to them next is foreseen, so they cost nothing meanwhile.

A call that writes is one token further after each step. Its tokens, blocks and charge are brought up to date
when somebody is about to look at them.
"""

from __future__ import annotations

import math

from autellix_backend.core.machine import Machine
from autellix_lab.sim.agenda import Agenda
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall

__all__ = ["EPSILON", "Writing"]

EPSILON = 1e-9
"""Times that differ by less are the same: sums of step times are rounded."""


class Writing:
    """Follows the calls that write; `step` is the number of steps that the engine has made."""

    def __init__(self, machine: Machine, blocks: CallBlocks) -> None:
        self._machine = machine
        self._blocks = blocks
        self._cost_s = 0.0
        """What a call would have been charged that wrote in every step so far."""
        self._finishes = Agenda()
        """By the step after which a call is done."""
        self._turns = Agenda()
        """By the cost at which a call has used up its quantum."""

    @property
    def next_finish(self) -> float:
        """The step after which the first call is done; infinity if nobody writes."""
        return self._finishes.next_at

    def steps_to_turn(self, cost_s: float) -> float:
        """Return the steps of this cost, not rounded, until a call has used up its quantum."""
        turn_at = self._turns.next_at
        return math.inf if turn_at == math.inf else (turn_at - self._cost_s) / cost_s

    def start(self, call: EngineCall, step: int) -> None:
        """Take in a call whose context has been read."""
        call.is_writing = True
        call.epoch += 1
        call.since_step, call.since_cost_s = step, self._cost_s
        self._finishes.add(step + call.output_tokens - call.generated, call)
        self.foresee_turn(call)
        self._blocks.kv.start_growing(step, call.computed)

    def stop(self, call: EngineCall, step: int) -> None:
        """Let go of a call, which is up to date."""
        self._blocks.kv.stop_growing(step, call.computed)
        call.is_writing = False
        call.epoch += 1

    def advance(self, cost_s: float) -> None:
        """Charge every call that writes, and will be looked at later, with what the steps have cost."""
        self._cost_s += cost_s

    def end_turns(self, step: int) -> None:
        """Bring the calls up to date whose quanta have been used up."""
        for call in self._turns.due(self._cost_s + EPSILON):
            self.bring_up(call, step)
            self.foresee_turn(call)

    def finished(self, step: int) -> list[EngineCall]:
        """Return the calls that are done by a step."""
        return self._finishes.due(step)

    def bring_up(self, call: EngineCall, step: int) -> None:
        """Bring a running call's tokens, blocks and charge up to date."""
        steps = step - call.since_step
        if not (call.is_writing and steps):
            return
        assert call.state is not None
        self._blocks.grow(call, steps)
        cost_s = self._cost_s - call.since_cost_s
        # A quantum that rounding leaves a trace of is used up.
        if abs(call.state.quantum_s - cost_s) < EPSILON:
            cost_s = call.state.quantum_s
        self._machine.charge(call.call_id, cost_s, 0.0)
        call.since_step, call.since_cost_s = step, self._cost_s

    def foresee_turn(self, call: EngineCall) -> None:
        """Foresee when a call that is up to date will have used up its quantum."""
        state = call.state
        assert state is not None
        if state.level <= self._machine.last_turn_level and 0 < state.quantum_s < math.inf:
            self._turns.add(call.since_cost_s + state.quantum_s, call)
