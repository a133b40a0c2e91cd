"""A machine under a baseline, driven by hand."""

from __future__ import annotations

from autellix_backend.core.arrival import Arrival, Context
from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.machine import Machine
from autellix_lab.sim.baselines import Baseline


class Driver:
    """Sends calls of programs to a machine and lets it decide; the calls of program p are p.1, p.2, …"""

    def __init__(self, baseline: Baseline) -> None:
        self.machine = Machine(SchedulerConfig(policy="fcfs"), policy=baseline.policy, admission=baseline)
        self._calls: dict[str, int] = {}

    def arrive(self, program: str, tokens: int, now: float) -> str:
        """Let the next call of a program arrive; return its id."""
        number = self._calls[program] = self._calls.get(program, 0) + 1
        call_id = f"{program}.{number}"
        self.machine.arrive(Arrival(call_id, program, context=Context(tokens)), now)
        return call_id

    def decide(self, now: float, tokens: int = 0) -> list[str]:
        """Return the calls that are admitted to the engine; running contexts have so many tokens."""
        changed = self.machine.review(now, 0, lambda _: tokens)
        self.machine.check()
        return changed

    def start(self, call_id: str, now: float) -> None:
        """Give an admitted call a slot."""
        self.machine.start(call_id, now)

    def finish(self, call_id: str, now: float, tokens: int, *, is_last: bool = False) -> None:
        """Finish a call that leaves a context of so many tokens."""
        self.machine.finish(call_id, now, context_tokens=tokens)
        if is_last:
            self.machine.end_program(call_id.split(".")[0], now)
        self.machine.check()

    def order(self) -> list[str]:
        """Return the calls in the engine, the next to run first."""
        return [call.call_id for call in self.machine]
