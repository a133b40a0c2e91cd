"""Loads from host memory on a simulated engine: a call that loads has its blocks, and no batch slot."""

from __future__ import annotations

from operator import attrgetter

from autellix_backend.core.machine import Machine
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.stretch import EPSILON

_rank = attrgetter("rank")


class HostLoads:
    """The waiting calls whose contexts are being loaded, or were."""

    def __init__(self, machine: Machine, blocks: CallBlocks) -> None:
        self.calls: dict[str, EngineCall] = {}
        self._machine = machine
        self._blocks = blocks

    @property
    def next_end_s(self) -> float:
        """The time at which the first load is over."""
        return min(call.ready_s for call in self.calls.values())

    def on_start(self, call: EngineCall) -> None:
        """Note that a call has got a slot."""
        self._machine.unpin(call.call_id)

    def begin(self, call: EngineCall, now: float) -> None:
        """Begin the load of a call that has got its blocks."""
        call.ready_s = self._blocks.start_load(call, now)
        self.calls[call.call_id] = call
        # It has blocks, and admission cannot withdraw it.
        self._machine.pin(call.call_id)

    def end(self, now: float, slots: int, budget: int) -> list[EngineCall]:
        """Return the calls whose loads are over and that get a slot, within a budget of prefill tokens."""
        ready = [call for call in self.calls.values() if call.ready_s <= now + EPSILON]
        started: list[EngineCall] = []
        for call in sorted(ready, key=_rank)[: max(0, slots)]:
            if budget <= 0:
                break
            self._blocks.end_load(call, budget)
            budget -= call.chunk
            del self.calls[call.call_id]
            started.append(call)
        return started
