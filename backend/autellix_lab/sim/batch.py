"""The running calls of a simulated engine: some prefill, the others decode."""

from __future__ import annotations

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_lab.sim.call_blocks import CallBlocks
from autellix_lab.sim.calls import EngineCall
from autellix_lab.sim.decoding import SimDecoding
from autellix_lab.sim.stretch import Stretch


class RunningBatch:
    """The calls that hold a batch slot, and the number of steps that the engine has made."""

    def __init__(self, config: SchedulerConfig, machine: Machine, blocks: CallBlocks) -> None:
        self.calls: dict[str, EngineCall] = {}
        """In the order in which they got their slots."""
        self.prefilling: dict[str, EngineCall] = {}
        self.decoding = SimDecoding(machine, blocks)
        self.steps = 0
        self._config = config
        self._machine = machine
        self._by_program: dict[str, dict[str, EngineCall]] = {}

    @property
    def decodes(self) -> int:
        """Running calls that decode in the current step."""
        return len(self.calls) - len(self.prefilling)

    @property
    def has_work(self) -> bool:
        """Whether the current step has any call."""
        return self.decodes > 0 or self.prefill_tokens > 0

    @property
    def prefill_tokens(self) -> int:
        """Tokens that the current step prefills."""
        return sum(call.chunk for call in self.prefilling.values())

    def add(self, call: EngineCall) -> None:
        """Add a call that got a slot; it begins to prefill."""
        self.calls[call.call_id] = self.prefilling[call.call_id] = call
        self._by_program.setdefault(call.program_id, {})[call.call_id] = call

    def remove(self, call: EngineCall) -> None:
        """Remove a call that is up to date from its slot."""
        del self.calls[call.call_id]
        siblings = self._by_program[call.program_id]
        del siblings[call.call_id]
        if not siblings:
            del self._by_program[call.program_id]
        if call.is_decoding:
            self.decoding.stop(call, self.steps)
        else:
            del self.prefilling[call.call_id]
            call.chunk = 0

    def skip_step(self) -> None:
        """Count a step that no call is in."""
        self.steps += 1

    def bring_up(self, call: EngineCall) -> None:
        """Bring a call's tokens, blocks and charge up to date."""
        self.decoding.bring_up(call, self.steps)

    def bring_up_program(self, program_id: str) -> None:
        """Bring all calls of a program up to date, before the machine reads its service."""
        for call in self._by_program.get(program_id, {}).values():
            self.bring_up(call)

    def advance(self, stretch: Stretch, now: float) -> list[EngineCall]:
        """Make a stretch's steps, charge their cost and return the calls that finished."""
        self.steps += stretch.steps
        is_measured = self._config.service == "measured"
        self.decoding.advance(stretch.steps_s if is_measured else stretch.steps * self._cost_s(0, 1, 0.0))
        for call in list(self.prefilling.values()):
            self._prefill(call, stretch.step_s, now)
        self.decoding.end_quanta(self.steps)
        return self.decoding.finished(self.steps)

    def steps_to_quantum_end(self, stretch: Stretch) -> float:
        """Return how many steps from a stretch's first on, not rounded, are left until a quantum ends."""
        growth_s = stretch.growth_s if self._config.service == "measured" else 0.0
        return self.decoding.steps_to_quantum_end(self._cost_s(0, 1, stretch.step_s), growth_s)

    def _cost_s(self, prefill_tokens: int, decode_tokens: int, step_s: float) -> float:
        """Return what a step with these tokens costs a call."""
        if self._config.service == "measured":
            return step_s
        return self._config.nominal_service_s(prefill_tokens, decode_tokens)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.prefilling.keys() <= self.calls.keys()
        assert sum(len(calls) for calls in self._by_program.values()) == len(self.calls)

    def _prefill(self, call: EngineCall, step_s: float, now: float) -> None:
        if not call.chunk:
            return
        cost_s = self._cost_s(call.chunk, 0, step_s)
        self._machine.charge(call.call_id, cost_s, now, is_prefill=call.chunk > 1, tokens=call.chunk)
        call.computed += call.chunk
        call.chunk = 0
        if call.computed == call.known:
            call.generated += 1
            del self.prefilling[call.call_id]
            self.decoding.start(call, self.steps)
